//! The end of a connection after its last reply: what the client is told, and how long it is waited for.

use std::time::Duration;

use blkmq_engine::Phase;
use rustix::event::PollFlags;
use rustix::io::Errno as SystemError;

use super::Transmission;
use crate::connection::socket::Fault::System;
use crate::connection::{Ending, wait};

/// How often a connection that has ended checks whether the client has got everything. Such a check wakes no other
/// thread.
const SEEING_OFF: Duration = Duration::from_millis(5);

/// How long the connection waits for a client that has got all its replies to learn of the end. The client's host may
/// be gone.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

impl Transmission {
    /// Called when everything is answered. Tells the client that this is the end. Returns whether this message, and all
    /// bytes before it, are with the socket.
    pub(super) fn has_closed(&mut self) -> Result<bool, Ending> {
        if self.is_gone {
            return Ok(true);
        }
        self.has_arrived = self.has_arrived || self.stream.on_the_way() == 0;
        match self.stream.close() {
            Ok(()) | Err(System(SystemError::PIPE | SystemError::CONNRESET)) => Ok(true),
            Err(System(SystemError::AGAIN)) => {
                self.is_writable = false;
                Ok(false)
            }
            Err(System(SystemError::INTR)) => Ok(false),
            Err(fault) => Err(Ending::Broken(fault)),
        }
    }

    /// Waits until a client that may go on sending has got what it was sent. If a TCP socket is closed with unread
    /// bytes, or is sent something after that, the bytes that are still on the way to the client are lost.
    pub(super) fn see_off(&mut self) -> Result<(), Ending> {
        self.adapter.session.leave();
        self.stream.end_sending();
        let (mut waited, mut last) = (Duration::ZERO, usize::MAX);
        loop {
            let left = self.stream.see_off();
            if left == 0 {
                break;
            }
            if left < last {
                last = left;
                self.note_progress();
            }
            self.note_blocked();
            self.check_stall()?;
            if self.stop.phase() == Phase::Stopped {
                return Err(Ending::Stopped);
            }
            if self.has_arrived && waited >= SHUTDOWN_TIMEOUT {
                break;
            }
            // This does not wait for the socket. So the connection reads from a client that sends without end only at
            // this rate.
            wait(None, &self.bell, PollFlags::empty(), Some(SEEING_OFF))?;
            waited += SEEING_OFF;
        }
        Ok(())
    }
}
