//! Why a server did not start.

use std::io;
use std::os::fd::RawFd;

use blkmq_engine::{Address, Bounds, ExportError, SocketError};

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There is no export.
    #[error("a server has at least one export")]
    NoExport,
    /// An export makes no sense.
    #[error("{0}")]
    Export(#[source] ExportError),
    /// Two exports have this name.
    #[error("two exports have the name {0:?}; clients could not tell them apart")]
    SameName(String),
    /// No connection may hold as much, or as little, as these say.
    #[error("{}", refused_bounds(.0))]
    Bounds(Bounds),
    /// No connection is allowed.
    #[error("no connection is allowed; give at least 1")]
    NoConnection,
    /// The memory is too little for the connections.
    #[error(
        "memory: {bytes} bytes are too few for {connections} connections; give at least {least}, or allow fewer \
         connections"
    )]
    Memory {
        /// What they may have, in bytes.
        bytes: usize,
        /// The connections.
        connections: usize,
        /// The least that so many need, in bytes.
        least: usize,
    },
    /// A socket that was handed over is of no use.
    #[error(
        "descriptor {descriptor}, handed over: {error}; hand over a stream socket that listens, with a path or a TCP \
         port"
    )]
    Socket {
        /// The number of its descriptor.
        descriptor: RawFd,
        /// What is wrong with it.
        #[source]
        error: SocketError,
    },
    /// The server cannot listen at this address.
    #[error("cannot listen at {0}: {1}")]
    Listen(Address, #[source] io::Error),
    /// The system gives no thread or no descriptor.
    #[error("cannot start a server: {0}")]
    System(#[source] io::Error),
}

impl StartError {
    /// Returns true if the configuration makes no sense. Otherwise the system did not allow something.
    #[must_use]
    pub fn is_bad_configuration(&self) -> bool {
        !matches!(self, Self::Listen(..) | Self::System(_))
    }
}

fn refused_bounds(Bounds { requests, bytes, .. }: &Bounds) -> String {
    if (1..=32768).contains(requests) {
        return format!("{bytes} bytes at a time; give at least 65536, the largest block");
    }
    format!("{requests} requests at a time; give a number from 1 to 32768")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a socket that was handed over is refused without its descriptor, the reason, or a remedy.
    #[test]
    fn a_socket_that_was_handed_over_is_refused_with_a_remedy() {
        let error = StartError::Socket { descriptor: 7, error: SocketError::NoPath };
        assert_eq!(
            error.to_string(),
            "descriptor 7, handed over: it has no path; hand over a stream socket that listens, with a path or a TCP \
             port"
        );
    }
}
