//! The end of a server: how long it waits for its clients, and what it says meanwhile.

use std::fmt::Write;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use blkmq::RequestQueue;
use blkmq_export::ClientInfo;

use super::command::{self, Running};
use super::nbd::Nbd;
use super::standby::Standby;
use super::{Event, notify};
use crate::control::name::shown;
use crate::operator;
use blkmq_program::Failure;
use blkmq_program::render::counted;

/// After this time the server first says which clients it waits for. Clients that only have to be notified of the end
/// are gone by then.
const AT_ONCE: Duration = Duration::from_millis(100);
/// How often the server says that again.
const EVERY: Duration = Duration::from_secs(5);
/// How long the server waits for requests of the device once it waits for no client any more.
const GRACE: Duration = Duration::from_secs(5);
/// How long the leave of block devices may still take at the third signal.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);
/// How long block devices may take to end once what their devices keep is left.
const LEFT: Duration = Duration::from_secs(3);
/// The most clients that are named one by one.
const MAX_NAMED: usize = 5;

/// What has to be done because time has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// Report which clients the server waits for.
    Report,
    /// Do not wait for clients any more.
    End,
    /// Do not wait for the device any more.
    Leave,
}

/// A drain that has begun.
#[derive(Debug)]
struct Drain {
    /// How long the server waits for clients. `None`: without a limit.
    limit: Option<Duration>,
    next: Duration,
    has_reported: bool,
    is_cut: bool,
}

impl Drain {
    fn new(limit: Option<Duration>) -> Self {
        let next = limit.map_or(AT_ONCE, |limit| limit.min(AT_ONCE));
        Self { limit, next, has_reported: false, is_cut: false }
    }

    /// What is due this long after the beginning.
    fn due(&mut self, elapsed: Duration) -> Option<Due> {
        if elapsed < self.next {
            return None;
        }
        if self.is_cut {
            return Some(Due::Leave);
        }
        let has_reported = std::mem::replace(&mut self.has_reported, true);
        if let Some(limit) = self.limit.filter(|limit| has_reported && elapsed >= *limit) {
            self.is_cut = true;
            self.next = limit + GRACE;
            return Some(Due::End);
        }
        self.next = elapsed + EVERY;
        if let Some(limit) = self.limit {
            self.next = self.next.min(limit);
        }
        Some(Due::Report)
    }
}

/// The leave of the block devices of this machine, which a thread of its own takes: it may take as long as their
/// requests take.
pub(super) struct Shutdown {
    /// What is to be done, until it has begun.
    steps: Option<Box<dyn FnOnce() -> Result<(), Failure> + Send>>,
    thread: Standby,
    tell: Sender<Event>,
    /// How it was, once it is over.
    shut_down: Option<Result<(), Failure>>,
}

impl Shutdown {
    /// # Errors
    /// The system gives no thread.
    pub(super) fn new(
        tell: &Sender<Event>,
        steps: impl FnOnce() -> Result<(), Failure> + Send + 'static,
    ) -> io::Result<Self> {
        let thread = Standby::start("part")?;
        Ok(Self { steps: Some(Box::new(steps)), thread, tell: tell.clone(), shut_down: None })
    }

    /// Begins, unless it has begun.
    fn begin(&mut self) {
        let Some(steps) = self.steps.take() else { return };
        let over = self.tell.clone();
        self.thread.run(move || _ = over.send(Event::ShutDown(steps())));
    }
}

/// How many of so many are not named one by one, if any are not.
fn and_more(nr: usize) -> String {
    if nr > MAX_NAMED { format!("; and {} more", nr - MAX_NAMED) } else { String::new() }
}

/// Which clients still keep the server from ending, in words.
fn describe(clients: &[ClientInfo], left: Option<Duration>) -> String {
    let mut text = format!("serve: waits for {}", counted(clients.len() as u64, "client"));
    if let Some(left) = left {
        let _ = write!(text, ", {} s more at most", left.as_secs().max(1));
    }
    for (index, client) in clients.iter().take(MAX_NAMED).enumerate() {
        let before = if index == 0 { ": " } else { "; " };
        let _ = write!(text, "{before}client {} from {}", client.number, client.peer);
        if let Some(name) = &client.name {
            let _ = write!(text, ", {name:?},");
        }
        if let Some(export) = &client.export {
            let _ = write!(text, " at {:?}", shown(export));
        }
        let _ = write!(text, " with {} not answered", counted(client.unanswered, "request"));
        if let Some(unread) = client.unread {
            let _ = write!(text, ", which has not read for {:.1} s", unread.as_secs_f64());
        }
    }
    text + &and_more(clients.len())
}

/// Runs until the server has drained, and until its command has ended if it was started for one. The first event begins
/// the drain, which waits for clients up to `limit`. Returns how many signals came as well.
pub(super) fn until_the_end(
    server: &Nbd,
    mut command: Option<Running>,
    limit: Option<Duration>,
    shutdown: &mut Shutdown,
    events: &Receiver<Event>,
) -> (Result<(), Failure>, u32) {
    let (mut is_drained, mut nr_signals) = (false, 0);
    let mut drain: Option<(Instant, Drain)> = None;
    let mut outcome = Ok(());
    while !is_drained || command.is_some() {
        let event = match &mut drain {
            None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some((began, drain)) => {
                if let Some(due) = drain.due(began.elapsed()) {
                    let clients = server.waited_for();
                    match due {
                        Due::Report if clients.is_empty() => (),
                        Due::Report => {
                            let left = drain.limit.map(|limit| limit.saturating_sub(began.elapsed()));
                            operator::say(&describe(&clients, left));
                        }
                        Due::End => {
                            let whom = match clients.len() {
                                0 => "the command".to_owned(),
                                nr => counted(nr as u64, "client"),
                            };
                            outcome = Err(Failure::Running(format!(
                                "serve: ended after {:?}, without waiting any longer for {whom}",
                                drain.limit.unwrap_or_default(),
                            )));
                            end_now(server, command.as_ref());
                        }
                        Due::Leave => {
                            let what = "serve: ended although the device has not given back its requests";
                            outcome = Err(Failure::Running(what.to_owned()));
                            break;
                        }
                    }
                    continue;
                }
                events.recv_timeout(drain.next.saturating_sub(began.elapsed()))
            }
        };
        let event = match event {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => unreachable!("this function's caller holds a sender"),
        };
        nr_signals += u32::from(matches!(event, Event::Signal));
        match event {
            Event::Drained => is_drained = true,
            Event::ShutDown(shut_down) => shutdown.shut_down = Some(shut_down),
            Event::Ended(status) => {
                command = None;
                outcome = outcome.and(command::outcome(status));
            }
            Event::Stop | Event::Signal if nr_signals < 2 => {
                if let Some(command) = &command {
                    command.ask_to_end();
                }
            }
            // The second request to end the server closes all connections, and the block devices wait for them no
            // longer. If a device does not give its requests back, the server still waits for it; a third signal ends
            // that as well.
            _ => {
                outcome = Err(Failure::Running("serve: ended at once, without waiting for clients".to_owned()));
                end_now(server, command.as_ref());
                shutdown.begin();
                if nr_signals > 2 {
                    break;
                }
            }
        }
        if drain.is_none() {
            notify::stopping();
            drain = Some((Instant::now(), Drain::new(limit)));
            let tell = shutdown.tell.clone();
            server.drain(move || drop(tell.send(Event::Drained)));
        }
    }
    (outcome, nr_signals)
}

/// Which block devices still keep the server from ending, in words.
fn describe_devices(devices: &[ClientInfo]) -> String {
    let device =
        |device: &ClientInfo| format!("{} with {} not answered", device.peer, counted(device.unanswered, "request"));
    let named: Vec<_> = devices.iter().take(MAX_NAMED).map(device).collect();
    let more = and_more(devices.len());
    format!("serve: waits for block devices: {}{more}; the third signal ends it soon", named.join("; "))
}

/// Waits until the leave of the block devices is over, and begins it before if nothing else has. Meanwhile it says now
/// and then which are `waited_for`. The third signal of all ends that soon: `abandon` then leaves what is not over.
pub(super) fn part(
    mut nr_signals: u32,
    mut shutdown: Shutdown,
    events: &Receiver<Event>,
    waited_for: impl Fn() -> Vec<ClientInfo>,
    abandon: impl FnOnce(),
) -> Result<(), Failure> {
    shutdown.begin();
    let left = || Err(Failure::Running("serve: ended at once, without waiting for block devices".to_owned()));
    // Further events, signals among them, move no moment at which something ends.
    let (mut abandon, mut end) = (Some(abandon), None);
    loop {
        if let Some(shut_down) = shutdown.shut_down.take() {
            return if abandon.is_some() { shut_down } else { left() };
        }
        if nr_signals > 2 {
            end.get_or_insert_with(|| Instant::now() + SHUTDOWN_TIMEOUT);
        }
        match events.recv_timeout(end.map_or(EVERY, |end| end.saturating_duration_since(Instant::now()))) {
            Ok(Event::ShutDown(shut_down)) => shutdown.shut_down = Some(shut_down),
            Ok(Event::Signal) => nr_signals += 1,
            Ok(_) => (),
            Err(_) if end.is_none() => operator::say(&describe_devices(&waited_for())),
            Err(_) => match abandon.take() {
                Some(abandon) => {
                    abandon();
                    // The steps go on now, and remove what is left.
                    end = Some(Instant::now() + LEFT);
                }
                None => return left(),
            },
        }
    }
}

/// Takes leave of the devices of these queues, by this thread. Waits for no longer than [`GRACE`], because a device
/// that is away does not answer.
pub(super) fn take_leave(queues: &[RequestQueue], by: &Standby) {
    let (done, closed) = mpsc::channel();
    let queues = queues.to_vec();
    by.run(move || {
        queues.iter().for_each(|q| q.driver().close());
        // An error says that the end came before.
        let _ = done.send(());
    });
    let _ = closed.recv_timeout(GRACE);
}

fn end_now(server: &Nbd, command: Option<&Running>) {
    server.end_now();
    if let Some(command) = command {
        command.kill();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn all_due(limit: Option<Duration>, until: Duration) -> Vec<(Duration, Due)> {
        let (mut drain, mut found) = (Drain::new(limit), Vec::new());
        while drain.next <= until {
            let at = drain.next;
            found.push((at, drain.due(at).unwrap()));
            if found.last().unwrap().1 == Due::Leave {
                break;
            }
        }
        found
    }

    #[test]
    fn a_drain_is_reported_at_once_and_periodically_and_ends_in_time() {
        let s = Duration::from_secs;
        let report = |ms| (Duration::from_millis(ms), Due::Report);
        let expected = [report(100), report(5100), report(10100), (s(12), Due::End), (s(17), Due::Leave)];
        assert_eq!(all_due(Some(s(12)), s(100)), expected);
        assert_eq!(all_due(Some(Duration::from_millis(50)), s(1)), [report(50), (Duration::from_millis(50), Due::End)]);
        assert_eq!(all_due(None, s(1000)).len(), 200, "without a limit it does not end by itself");
        assert_eq!(Drain::new(None).due(Duration::ZERO), None);
    }

    #[test]
    fn it_is_said_which_clients_are_waited_for_and_why() {
        let client = |number, unread| ClientInfo {
            number,
            front_end: blkmq_export::FrontEnd::Nbd,
            peer: "127.0.0.1:99".to_owned(),
            name: (number == 2).then(|| "a".to_owned()),
            export: Some(String::new()),
            client: None,
            requests: 9,
            unanswered: number,
            unread,
            bytes: 0,
            memory: 0,
            errors: blkmq_export::Errors::default(),
            latencies: blkmq_export::Latencies::default(),
        };
        let device = |number| ClientInfo { peer: format!("ublk{number}"), ..client(number, None) };
        let expected = "serve: waits for block devices: ublk1 with 1 request not answered; ublk3 with 3 requests not \
                        answered; the third signal ends it soon";
        assert_eq!(describe_devices(&[device(1), device(3)]), expected);
        let clients = [client(1, None), client(2, Some(Duration::from_millis(1500)))];
        assert_eq!(
            describe(&clients, Some(Duration::from_millis(19_900))),
            "serve: waits for 2 clients, 19 s more at most: client 1 from 127.0.0.1:99 at \"default\" with 1 request not \
             answered; client 2 from 127.0.0.1:99, \"a\", at \"default\" with 2 requests not answered, which has not read for 1.5 s"
        );
        let many: Vec<_> = (1..=7).map(|number| client(number, None)).collect();
        let text = describe(&many, None);
        assert!(text.starts_with("serve: waits for 7 clients: ") && text.ends_with("; and 2 more"), "{text}");
    }

    /// Red if a device that keeps requests keeps the server too, whatever the operator does.
    #[test]
    fn the_third_signal_ends_a_parting_that_does_not_end() {
        let (tell, events) = mpsc::channel();
        let not_left = || panic!("the steps were over");
        let failing = Shutdown::new(&tell, || Err(Failure::Running("no".to_owned()))).unwrap();
        assert!(part(0, failing, &events, Vec::new, not_left).is_err());
        let (hold, held) = mpsc::channel::<()>();
        tell.send(Event::Signal).unwrap();
        tell.send(Event::Stop).unwrap();
        tell.send(Event::Signal).unwrap();
        let mut is_abandoned = false;
        let kept = Shutdown::new(&tell, move || {
            let _ = held.recv();
            Ok(())
        });
        let kept = kept.unwrap();
        let Err(Failure::Running(what)) = part(1, kept, &events, Vec::new, || is_abandoned = true) else { panic!() };
        assert!(what.contains("block devices") && is_abandoned);
        drop(hold);
    }

    /// Red if each further signal gives the block devices more time: then an operator who does not stop asking waits
    /// forever.
    #[test]
    fn signals_that_do_not_stop_put_nothing_off() {
        let (tell, events) = mpsc::channel();
        let (hold, held) = mpsc::channel::<()>();
        let kept = Shutdown::new(&tell, move || {
            let _ = held.recv();
            Ok(())
        });
        let kept = kept.unwrap();
        // It holds a sender of its own, and ends when no program hears it any more.
        let asking = thread::spawn(move || {
            while tell.send(Event::Signal).is_ok() {
                thread::sleep(SHUTDOWN_TIMEOUT / 20);
            }
        });
        assert!(part(3, kept, &events, Vec::new, || drop(hold)).is_err());
        drop(events);
        asking.join().unwrap();
    }

    /// Red if what was over before is waited for, or done again.
    #[test]
    fn a_parting_that_has_begun_is_not_begun_again() {
        let (tell, events) = mpsc::channel();
        let mut begun = Shutdown::new(&tell, || Ok(())).unwrap();
        begun.begin();
        let Event::ShutDown(shut_down) = events.recv().unwrap() else { panic!() };
        begun.shut_down = Some(shut_down);
        assert!(part(0, begun, &events, Vec::new, || ()).is_ok());
        assert!(events.try_recv().is_err());
    }
}
