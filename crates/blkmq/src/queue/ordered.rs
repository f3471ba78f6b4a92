//! What is ordered together: the domains of a queue ([`domains`]), each a scheduler under its lock ([`domain`],
//! [`hold`]) with the requests that wait in front of it ([`backlog`]). The scheduler also decides which requests pass
//! it by ([`gate`]), and hears of those and of completions ([`reports`]). The limiter stands behind it ([`limiter`]).

pub(super) mod backlog;
pub(super) mod domain;
pub(super) mod domains;
mod gate;
pub(super) mod hold;
pub(super) mod limiter;
pub(super) mod reports;
mod scheduler;
