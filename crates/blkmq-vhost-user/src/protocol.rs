//! The words of vhost-user: messages, features, and the configuration of a block device.

pub(crate) mod config;
pub(crate) mod message;
pub(crate) mod wire;

/// Returns whether a feature is among those that the two sides agree on, which have a bit each.
pub(crate) const fn has(features: u64, feature: u32) -> bool {
    features >> feature & 1 != 0
}
