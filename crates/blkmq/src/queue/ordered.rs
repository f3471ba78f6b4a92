//! The domains of a queue ([`domains`]): each is a scheduler under its lock ([`domain`], [`hold`]) with its backlog
//! ([`backlog`]). The scheduler also decides which requests bypass it ([`gate`]), and gets reports of those and of
//! completions ([`reports`]). The limiter bounds what it dispatches ([`limiter`], [`limiter_state`]).

pub(super) mod backlog;
pub(super) mod domain;
pub(super) mod domains;
mod gate;
pub(super) mod hold;
pub(super) mod limiter;
mod limiter_state;
pub(super) mod reports;
mod scheduler;
