//! Why a server did not start.

use std::error::Error;
use std::fmt;
use std::io;
use std::os::fd::RawFd;

use blkmq_engine::{Bounds, ExportError};

use super::listener::{Address, SocketError};

/// Why a server did not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// There is no export.
    NoExport,
    /// An export makes no sense.
    Export(ExportError),
    /// Two exports have this name.
    SameName(String),
    /// No connection may hold as much, or as little, as these say.
    Bounds(Bounds),
    /// No connection is allowed.
    NoConnection,
    /// The memory is too little for the connections.
    Memory {
        /// What they may have, in bytes.
        bytes: usize,
        /// The connections.
        connections: usize,
        /// The least that so many need, in bytes.
        least: usize,
    },
    /// A socket that was handed over is of no use.
    Socket {
        /// The number of its descriptor.
        descriptor: RawFd,
        /// What is wrong with it.
        error: SocketError,
    },
    /// The server cannot listen at this address.
    Listen(Address, io::Error),
    /// The system gives no thread or no descriptor.
    System(io::Error),
}

impl StartError {
    /// Whether the configuration makes no sense. Otherwise the system did not allow something.
    #[must_use]
    pub fn is_bad_configuration(&self) -> bool {
        !matches!(self, Self::Listen(..) | Self::System(_))
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoExport => f.write_str("a server has at least one export"),
            Self::Export(error) => error.fmt(f),
            Self::SameName(name) => {
                write!(f, "two exports have the name {name:?}; clients could not tell them apart")
            }
            Self::Bounds(Bounds { requests, .. }) if !(1..=32768).contains(requests) => {
                write!(f, "{requests} requests at a time; give a number from 1 to 32768")
            }
            Self::Bounds(Bounds { bytes, .. }) => {
                write!(f, "{bytes} bytes at a time; give at least 65536, the largest block")
            }
            Self::NoConnection => f.write_str("no connection is allowed; give at least 1"),
            Self::Memory { bytes, connections, least } => write!(
                f,
                "memory: {bytes} bytes are too few for {connections} connections; give at least {least}, or allow fewer \
                 connections"
            ),
            Self::Socket { descriptor, error } => write!(
                f,
                "descriptor {descriptor}, handed over: {error}; hand over a stream socket that listens, with a path or a \
                 TCP port"
            ),
            Self::Listen(address, error) => write!(f, "cannot listen at {address}: {error}"),
            Self::System(error) => write!(f, "cannot start a server: {error}"),
        }
    }
}

impl Error for StartError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Export(error) => Some(error),
            Self::Socket { error, .. } => Some(error),
            Self::Listen(_, error) | Self::System(error) => Some(error),
            _ => None,
        }
    }
}
