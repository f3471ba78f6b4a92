//! The places of the connections of one listener that are served at a time. When all are taken, the connection that has
//! been silent for longest gives its place to one that comes.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How far a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The client has yet to ask, or to ask to the end.
    Asking,
    /// The server works on the answer, so the client has nothing to do.
    Waiting,
    /// The client reads the answer.
    Reading,
}

impl Phase {
    /// How long a client may be silent before another one may have its place. A request comes with the connection, or
    /// soon after it; the parts of a long answer take longer to reach a client far away.
    fn timeout(self) -> Option<Duration> {
        match self {
            Self::Asking => Some(Duration::from_millis(100)),
            Self::Waiting => None,
            Self::Reading => Some(Duration::from_secs(1)),
        }
    }
}

/// A connection that is served.
#[derive(Debug)]
pub(super) struct Seat {
    stream: UnixStream,
    /// The phase, and since when the client has been silent in it.
    state: Mutex<(Phase, Instant)>,
}

impl Seat {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, state: Mutex::new((Phase::Asking, Instant::now())) }
    }

    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    fn state(&self) -> MutexGuard<'_, (Phase, Instant)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins another phase.
    pub(super) fn begin(&self, phase: Phase) {
        *self.state() = (phase, Instant::now());
    }

    /// Notes that the client has taken something of the answer. A client that sends is given no more time for each
    /// byte, whether it asks or has its answer.
    pub(super) fn note(&self) {
        let mut state = self.state();
        if state.0 == Phase::Reading {
            state.1 = Instant::now();
        }
    }

    /// When another connection may take this place. `None`: not in this phase.
    fn due(&self) -> Option<Instant> {
        let (phase, since) = *self.state();
        Some(since + phase.timeout()?)
    }
}

/// The places of one listener.
#[derive(Debug)]
pub(super) struct Seats {
    most: usize,
    taken: Mutex<Vec<Arc<Seat>>>,
    left: Condvar,
}

impl Seats {
    /// Places for this many connections.
    pub(super) fn new(most: usize) -> Self {
        Self { most, taken: Mutex::default(), left: Condvar::new() }
    }

    /// Takes a place for a connection. If all are taken, the connection that has been silent for longest has to end,
    /// and this waits until it has been silent for long enough. So connections that come again and again get no more
    /// than their turn. Returns the stream if all others wait for the server.
    pub(super) fn take(self: &Arc<Self>, stream: UnixStream) -> Result<Taken, UnixStream> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while taken.len() >= self.most {
            let due = taken.iter().enumerate().filter_map(|(place, seat)| Some((seat.due()?, place))).min();
            let Some((due, place)) = due else { return Err(stream) };
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // Its thread finds the end of the stream, and leaves.
                let _ = taken.swap_remove(place).stream.shutdown(Shutdown::Both);
            } else {
                taken = self.left.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        let seat = Arc::new(Seat::new(stream));
        taken.push(Arc::clone(&seat));
        Ok(Taken { seats: Arc::clone(self), seat })
    }
}

/// A connection's place, which it gives back when this value is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    seats: Arc<Seats>,
    seat: Arc<Seat>,
}

impl std::ops::Deref for Taken {
    type Target = Seat;

    fn deref(&self) -> &Seat {
        &self.seat
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|seat| !Arc::ptr_eq(seat, &self.seat));
        self.seats.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    /// Red if connections that are silent keep their places, or if another one than the most silent has to go.
    #[test]
    fn the_one_that_has_been_silent_for_longest_gives_its_place() {
        let seats = Arc::new(Seats::new(2));
        let ((mut first, one), (mut second, other), (_third, third)) = (pair(), pair(), pair());
        let [one, other] = [one, other].map(|stream| seats.take(stream).unwrap());
        one.begin(Phase::Reading);
        one.note();
        other.note();
        let third = seats.take(third).unwrap();
        assert_eq!(second.read(&mut [0]).unwrap(), 0, "it is closed");
        first.set_nonblocking(true).unwrap();
        assert!(first.read(&mut [0]).is_err(), "it is open");
        drop((one, other, third));
        assert_eq!(seats.taken.lock().unwrap().len(), 0);
    }

    /// Red if a client that waits for its answer loses its place, or if one that comes then waits for it.
    #[test]
    fn who_waits_for_an_answer_keeps_the_place() {
        let seats = Arc::new(Seats::new(1));
        let ((_client, stream), (_another, another)) = (pair(), pair());
        let seat = seats.take(stream).unwrap();
        seat.begin(Phase::Waiting);
        let another = seats.take(another).unwrap_err();
        drop(seat);
        assert!(seats.take(another).is_ok());
    }
}
