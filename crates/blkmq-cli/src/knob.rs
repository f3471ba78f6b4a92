//! What `blkmq get` and `blkmq set` are about: a knob of a queue, or of a client or group of it.

use blkmq_program::Failure;

/// A client or group, as it is named on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose<'a> {
    Queue,
    Client(&'a str),
    Group(&'a str),
}

/// The words before a value: `[QUEUE] KNOB [client=NAME|group=NAME]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Knob<'a> {
    pub(crate) queue: Option<&'a str>,
    pub(crate) name: &'a str,
    pub(crate) whose: Whose<'a>,
}

/// The knobs that clients and groups have.
const OF_CLIENTS: &[&str] = &["weight", "group"];
const OF_GROUPS: &[&str] = &["weight"];

impl<'a> Whose<'a> {
    /// Reads `client=NAME` or `group=NAME`.
    pub(crate) fn of(word: &'a str) -> Option<Self> {
        match word.split_once('=')? {
            ("client", name) => Some(Self::Client(name)),
            ("group", name) => Some(Self::Group(name)),
            _ => None,
        }
    }
}

impl<'a> Knob<'a> {
    /// Reads the words. `None` if they are too few or too many.
    pub(crate) fn read(words: &[&'a str]) -> Result<Option<Self>, Failure> {
        let whose = words.last().and_then(|last| Whose::of(last));
        let words = if whose.is_some() { &words[..words.len() - 1] } else { words };
        let whose = whose.unwrap_or(Whose::Queue);
        let (queue, name) = match *words {
            [queue, name] => (Some(queue), name),
            [name] => (None, name),
            _ => return Ok(None),
        };
        let known = match whose {
            Whose::Queue => return Ok(Some(Self { queue, name, whose })),
            Whose::Client(_) => OF_CLIENTS,
            Whose::Group(_) => OF_GROUPS,
        };
        if known.contains(&name) {
            return Ok(Some(Self { queue, name, whose }));
        }
        let what = if matches!(whose, Whose::Client(_)) { "client" } else { "group" };
        Err(Failure::Input(format!("a {what} has no knob '{name}'; it has: {}", known.join(", "))))
    }

    /// The parts of its path on the control socket, of this queue.
    pub(crate) fn path(&self, queue: &'a str) -> Vec<&'a str> {
        let own = match self.whose {
            Whose::Queue => vec!["knobs", self.name],
            Whose::Client(client) => vec!["clients", client, self.name],
            Whose::Group(group) => vec!["groups", group, self.name],
        };
        [vec!["queues", queue], own].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a word for a client or group is taken for a knob, or a queue for either.
    #[test]
    fn one_grammar_names_knobs_of_queues_clients_and_groups() {
        fn read(words: &str) -> Option<Knob<'_>> {
            Knob::read(&words.split(' ').collect::<Vec<_>>()).expect("clients and groups have these")
        }
        let knob = |queue, name, whose| Some(Knob { queue, name, whose });
        for (words, expected) in [
            ("scheduler", knob(None, "scheduler", Whose::Queue)),
            ("disk scheduler", knob(Some("disk"), "scheduler", Whose::Queue)),
            ("weight client=a@b", knob(None, "weight", Whose::Client("a@b"))),
            ("disk weight client=a=b", knob(Some("disk"), "weight", Whose::Client("a=b"))),
            ("weight group=gold/batch", knob(None, "weight", Whose::Group("gold/batch"))),
            ("disk group client=a", knob(Some("disk"), "group", Whose::Client("a"))),
            ("a b c", None),
            ("a b c client=d", None),
            ("client=a", None),
        ] {
            assert_eq!(read(words), expected, "{words}");
        }
        let path = |words: &str| read(words).unwrap().path("q").join(" ");
        assert_eq!(path("weight client=a"), "queues q clients a weight");
        assert_eq!(path("weight group=a"), "queues q groups a weight");
        assert_eq!(path("iosched/x"), "queues q knobs iosched/x");
    }
}
