//! A group of clients as it is written in a file. What reads the file's groups calls in.

use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use toml::Spanned;

/// A group as it is written. Its path is the key of its table.
#[derive(Debug)]
pub(super) struct WrittenGroup {
    pub(super) weight: Option<Spanned<i64>>,
    /// What else is in its table: the keys, and whether there is a table.
    others: Vec<(Spanned<String>, bool)>,
}

impl WrittenGroup {
    /// What is wrong with what is written of the group of this path, and where.
    pub(super) fn fault(&self, path: &str) -> Option<(Range<usize>, String)> {
        let (key, is_table) = self.others.first()?;
        let inner = key.get_ref();
        let mut what = format!("'{inner}' is no setting of the group '{path}', which has: weight");
        if *is_table {
            what += &format!("; a group in it is written [groups.\"{path}/{inner}\"]");
        }
        Some((key.span(), what))
    }
}

impl<'de> Deserialize<'de> for WrittenGroup {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = WrittenGroup;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a group: a table, as in [groups.gold] with weight = 300 beneath it")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WrittenGroup, A::Error> {
        let (mut weight, mut others) = (None, Vec::new());
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            if key.get_ref() == "weight" {
                weight = Some(map.next_value()?);
            } else {
                others.push((key, map.next_value::<toml::Value>()?.is_table()));
            }
        }
        Ok(WrittenGroup { weight, others })
    }
}
