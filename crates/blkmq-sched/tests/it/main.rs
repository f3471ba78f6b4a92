//! All integration tests of the crate in one program, a module for each subject.

mod allocation;
mod bench;
mod bfq_changes;
mod bfq_model;
mod bfq_room;
mod bfq_rules;
mod contract;
mod counting;
mod fair_fluid;
mod fair_model;
mod fair_rules;
mod fair_usage;
mod knobs;
mod kyber_model;
mod kyber_rules;
mod limiter_rules;
mod limiter_shares;
mod limiter_waits;
mod merging;
mod model;
mod mq_deadline_model;
mod mq_deadline_rules;
mod random;
mod registry;
mod throttle_rules;
mod world;
