//! What bounds the requests that the device has: tokens by kind ([`pools`]) with the latencies that decide their
//! number, and the window of predicted work ([`opening`]) with what it learns from ([`flows`]).

pub(super) mod flows;
pub(super) mod opening;
pub(super) mod pools;
