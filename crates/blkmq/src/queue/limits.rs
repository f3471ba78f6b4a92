//! What bounds the requests that the device has: tokens by kind ([`pools`]) with the latencies that decide their
//! number; and what the limiter of predicted work learns from ([`flows`]).

pub(super) mod flows;
pub(super) mod pools;
