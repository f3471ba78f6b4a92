//! The memory for the data of requests: [`budget`] divides it among the connections of a front-end, [`account`] is what
//! one connection takes of it, [`pool`] has the connection's buffers, and [`spare`] those of none. Sessions call in.

pub(crate) mod account;
pub(crate) mod budget;
pub(crate) mod pool;
mod spare;
