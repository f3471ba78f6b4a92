//! What bounds the requests that the device has: tokens by kind ([`pools`]) with the latencies that decide their
//! number, and the limiter of predicted work ([`opening`]) with what it learns from ([`flows`]).

pub(super) mod flows;
pub(super) mod limiter;
pub(super) mod pools;
