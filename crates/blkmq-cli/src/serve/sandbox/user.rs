//! The user and group that a server becomes.

use std::ffi::CString;

use blkmq_workbench::TextError;
use nix::unistd::{Gid, Group, Uid, User, initgroups, setgid, setgroups, setuid};

use crate::serve::given::Given;
use blkmq_program::Failure;

/// The user that a server becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::serve) struct Identity {
    user: Option<Uid>,
    /// The user's name on this machine, for the groups that the user is in.
    name: Option<CString>,
    group: Gid,
    /// The user or group that was asked for.
    given: Given,
}

impl Identity {
    /// Looks up the user and group that were asked for. `None` if none were. Without a group, it is the user's own.
    pub(in crate::serve) fn find(user: Option<&Given>, group: Option<&Given>) -> Result<Option<Self>, TextError> {
        let Some(given) = user.or(group).cloned() else { return Ok(None) };
        let known = user.map(find_user).transpose()?;
        let (user, known) = known.map_or((None, None), |(uid, known)| (Some(uid), known));
        let group = match (group, &known) {
            (Some(group), _) => find_group(group)?,
            (None, Some(known)) => known.gid,
            (None, None) => {
                let what = format!("this machine does not know what group '{}' is in; say --group too", given.text);
                return Err(given.fault(what));
            }
        };
        let name = known.and_then(|known| CString::new(known.name).ok());
        Ok(Some(Self { user, name, group, given }))
    }

    /// Becomes this user, with all threads, for good.
    pub(super) fn take(&self) -> Result<(), Failure> {
        self.change().map_err(|error| {
            let what = format!("cannot go on as '{}': {error}; a server that root starts can", self.given.text);
            Failure::Running(format!("{}: {what}", self.given.place))
        })
    }

    fn change(&self) -> nix::Result<()> {
        match &self.name {
            Some(name) => initgroups(name, self.group)?,
            None => setgroups(&[self.group])?,
        }
        setgid(self.group)?;
        // This comes last, because it takes away the right to change the groups.
        self.user.map_or(Ok(()), setuid)
    }
}

fn find_user(given: &Given) -> Result<(Uid, Option<User>), TextError> {
    let found = match given.text.parse() {
        Ok(number) => User::from_uid(Uid::from_raw(number)).map(|user| Some((Uid::from_raw(number), user))),
        Err(_) => User::from_name(&given.text).map(|user| user.map(|user| (user.uid, Some(user)))),
    };
    let found = found.map_err(|error| given.fault(format!("'{}' cannot be looked up: {error}", given.text)))?;
    found.ok_or_else(|| given.fault(format!("this machine knows no user '{}'; give a name or a number", given.text)))
}

fn find_group(given: &Given) -> Result<Gid, TextError> {
    if let Ok(number) = given.text.parse() {
        return Ok(Gid::from_raw(number));
    }
    let found = Group::from_name(&given.text);
    let found = found.map_err(|error| given.fault(format!("'{}' cannot be looked up: {error}", given.text)))?;
    let unknown = || given.fault(format!("this machine knows no group '{}'; give a name or a number", given.text));
    found.map(|group| group.gid).ok_or_else(unknown)
}
