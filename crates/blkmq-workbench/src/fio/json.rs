//! JSON whose objects keep the order of their members.

use serde::{Serialize, Serializer};
use serde_json::Value;

/// A value, or an object or array of such values.
#[derive(Debug)]
pub(super) enum Json {
    Value(Value),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Value(value) => value.serialize(serializer),
            Self::Array(values) => serializer.collect_seq(values),
            Self::Object(members) => serializer.collect_map(members.iter().map(|(name, value)| (name, value))),
        }
    }
}

impl<T: Into<Value>> From<T> for Json {
    fn from(value: T) -> Self {
        Self::Value(value.into())
    }
}

/// An object of these members.
macro_rules! object {
    ($($name:literal: $value:expr),* $(,)?) => {
        Json::Object(vec![$(($name.to_owned(), Json::from($value))),*])
    };
}
pub(super) use object;

impl Json {
    /// The object of these members.
    pub(super) fn object<N: ToString, V: Into<Self>>(members: impl IntoIterator<Item = (N, V)>) -> Self {
        Self::Object(members.into_iter().map(|(name, value)| (name.to_string(), value.into())).collect())
    }

    /// Adds the members of another object to this one.
    pub(super) fn and(mut self, other: Self) -> Self {
        if let (Self::Object(members), Self::Object(others)) = (&mut self, other) {
            members.extend(others);
        }
        self
    }

    /// Adds a member to an object, if there is a value.
    pub(super) fn with(mut self, name: &str, value: Option<impl Into<Self>>) -> Self {
        if let (Self::Object(members), Some(value)) = (&mut self, value) {
            members.push((name.to_owned(), value.into()));
        }
        self
    }
}
