//! Which clients may use an export, in the form in which operators write it on the command line or in a file.

use blkmq::is_hidden;
use blkmq_export::{Allow, Identity, Permit};
use blkmq_workbench::{TextError, assignment};
use nix::unistd::User;
use serde::Deserialize;

use super::given::{Given, Word};
use super::priority::priority;

/// The word for every client.
const ANYBODY: &str = "any";
/// An example of a list in a file.
const IN_A_FILE: &str = r#"allow = [{ certificate = "NAME", access = "write" }, { user = "NAME" }]"#;
/// An example of one client on the command line.
const AS_AN_OPTION: &str = "--allow certificate=NAME,access=write or --allow user=NAME";

/// A list in a file.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected \"any\" or a list of tables, each with certificate or user, and access and priority if \
                               need be"
)]
pub(super) enum Written {
    Word(String),
    List(Vec<WrittenPermit>),
}

/// A client in the list.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table with certificate or user in it")]
pub(super) struct WrittenPermit {
    certificate: Option<String>,
    user: Option<Word>,
    access: Option<String>,
    priority: Option<String>,
}

impl Written {
    pub(super) fn read(&self) -> Result<Allow, String> {
        match self {
            Self::Word(word) if word == ANYBODY => Ok(Allow::Anybody),
            Self::Word(word) => Err(format!("allow: '{word}' is not accepted; accepted: '{ANYBODY}', or {IN_A_FILE}")),
            Self::List(list) => Ok(Allow::Listed(list.iter().map(WrittenPermit::read).collect::<Result<_, _>>()?)),
        }
    }
}

impl WrittenPermit {
    fn read(&self) -> Result<Permit, String> {
        let who = match (&self.certificate, &self.user) {
            (Some(name), None) if name.contains(is_hidden) => return Err(hidden_certificate(name)),
            (Some(name), None) => Identity::Certificate(name.clone()),
            (None, Some(user)) => Identity::User(user_number(&user.to_string())?),
            _ => return Err("allow: a client is known by a certificate or by a user, one of both".to_owned()),
        };
        let writes = match self.access.as_deref() {
            Some("write") => true,
            Some("read") | None => false,
            Some(text) => return Err(format!("access: '{text}' is not accepted; accepted: read, write")),
        };
        Ok(Permit { who, writes, priority: self.priority.as_deref().map(priority).transpose()? })
    }
}

/// What is wrong with a certificate of this name.
pub(super) fn hidden_certificate(name: &str) -> String {
    format!(
        "certificate: '{name}': no client is let in whose name has characters that control a line or cannot be seen"
    )
}

/// The number of a user by name or number.
pub(super) fn user_number(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err(format!("user: this machine knows no user '{text}'; give a name that it knows, or a number")),
        Err(error) => Err(format!("user: '{text}' cannot be looked up: {error}; give a number")),
    }
}

/// Combines all options `--allow`. `None` if there are none.
pub(super) fn of_options(options: &[String]) -> Result<Option<Allow>, TextError> {
    let [first, ..] = options else { return Ok(None) };
    if options.iter().any(|option| option == ANYBODY) {
        if options.len() > 1 {
            let what = format!("'{ANYBODY}' lets every client in; leave out the others, or '{ANYBODY}'");
            return Err(Given::option("allow", first).fault(what));
        }
        return Ok(Some(Allow::Anybody));
    }
    let permits = options.iter().map(|text| of_option(text).map_err(|what| Given::option("allow", text).fault(what)));
    Ok(Some(Allow::Listed(permits.collect::<Result<_, _>>()?)))
}

/// Reads `certificate=NAME` or `user=NAME`, and the parts that may follow.
fn of_option(text: &str) -> Result<Permit, String> {
    let mut written = WrittenPermit::default();
    for word in text.split(',') {
        if word == ANYBODY {
            return Err(format!(
                "'{text}': '{ANYBODY}' stands alone, and lets every client read and write; to allow less, name the \
                 clients, as in {AS_AN_OPTION}"
            ));
        }
        let wrong = || format!("'{word}' is not accepted; accepted: {ANYBODY}, or words as in {AS_AN_OPTION}");
        let (name, value) = assignment(word).map_err(|_| wrong())?;
        let value = value.to_owned();
        match name {
            "certificate" => written.certificate = Some(value),
            "user" => written.user = Some(Word::Text(value)),
            "access" => written.access = Some(value),
            "priority" => written.priority = Some(value),
            _ => return Err(wrong()),
        }
    }
    written.read()
}

/// What is wrong with the list of clients that may use an export, if anything is. `names_clients`: clients that encrypt
/// must show certificates.
pub(super) fn check(allow: Option<&Allow>, names_clients: bool) -> Result<(), String> {
    match allow {
        None if names_clients => Err(format!(
            "with --tls-verify-peer nobody may use this export before it is said who may: in the file of --config by {IN_A_FILE}, or by \
             {AS_AN_OPTION}; --allow {ANYBODY} lets in every client that the authority has signed a certificate for"
        )),
        Some(Allow::Listed(permits)) if !names_clients => {
            let certificate = permits.iter().find(|permit| matches!(permit.who, Identity::Certificate(_)));
            certificate.map_or(Ok(()), |Permit { who, .. }| {
                Err(format!("{who} is allowed to use this export, but no client shows one without --tls-verify-peer"))
            })
        }
        _ => Ok(()),
    }
}

/// Whether the sockets of the exports are open to other users too. The sockets are open if lists name users and every
/// export has a list, so that only users in a list get in.
pub(super) fn is_for_users<'a>(mut allows: impl Iterator<Item = Option<&'a Allow>>) -> bool {
    let mut names_a_user = false;
    let are_lists = allows.all(|allow| match allow {
        Some(Allow::Listed(permits)) => {
            names_a_user |= permits.iter().any(|permit| matches!(permit.who, Identity::User(_)));
            true
        }
        _ => false,
    });
    are_lists && names_a_user
}

#[cfg(test)]
mod tests {
    use blkmq::{Class, IoPriority};

    use super::*;

    fn options(texts: &[&str]) -> Result<Option<Allow>, String> {
        let texts: Vec<_> = texts.iter().map(|&text| text.to_owned()).collect();
        of_options(&texts).map_err(|error| error.to_string())
    }

    #[test]
    fn options_name_clients_and_what_they_may_do() {
        let urgent = Some(IoPriority { class: Class::RealTime, level: 0 });
        let gold = Permit { who: Identity::Certificate("gold".to_owned()), writes: true, priority: urgent };
        let root = Permit { who: Identity::User(0), writes: false, priority: None };
        let number = Permit { who: Identity::User(77), writes: false, priority: None };
        let given = options(&["certificate=gold,access=write,priority=rt/0", "user=root", "user=77,access=read"]);
        assert_eq!(given, Ok(Some(Allow::Listed(vec![gold, root, number]))));
        assert_eq!((options(&[]), options(&["any"])), (Ok(None), Ok(Some(Allow::Anybody))));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        for (given, expected) in [
            (&["gold"][..], "--allow: 'gold' is not accepted; accepted: any, or words as in --allow certificate="),
            (&["certificate=gold,write=1"], "--allow: 'write=1' is not accepted; accepted: any, or words as in"),
            (&["certificate=gold,access=all"], "--allow: access: 'all' is not accepted; accepted: read, write"),
            (&["access=read"], "--allow: allow: a client is known by a certificate or by a user, one of both"),
            (&["user=root,certificate=a"], "--allow: allow: a client is known by a certificate or by a user"),
            (&["user=no such user"], "--allow: user: this machine knows no user 'no such user'; give a name"),
            (&["user=root", "any"], "--allow: 'any' lets every client in; leave out the others, or 'any'"),
            // Red before: the message refused 'any' and said in one sentence that 'any' is accepted.
            (&["any,access=write"], "--allow: 'any,access=write': 'any' stands alone, and lets every client read and"),
            (&["user=root,any"], "--allow: 'user=root,any': 'any' stands alone, and lets every client read and write"),
        ] {
            let error = options(given).unwrap_err();
            assert!(error.starts_with(expected), "{given:?}: {error}");
        }
    }

    #[test]
    fn sockets_are_for_other_users_where_every_export_has_a_list_and_one_names_a_user() {
        let [users, names] = ["user=0", "certificate=a"].map(|text| options(&[text]).unwrap().unwrap());
        let of = |allows: &[Option<&Allow>]| is_for_users(allows.iter().copied());
        assert!(of(&[Some(&users)]) && of(&[Some(&names), Some(&users)]));
        assert!(!of(&[Some(&names)]) && !of(&[Some(&users), None]) && !of(&[Some(&users), Some(&Allow::Anybody)]));
    }
}
