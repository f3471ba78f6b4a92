//! The groups of clients, and which client belongs to which, in the form in which operators write it in a file.

use std::collections::BTreeMap;
use std::ops::Range;

use blkmq::{DEFAULT_WEIGHT, is_hidden};
use blkmq_export::{Layout, MAX_GROUPS, MAX_RULES, Rule, WEIGHTS, check_group};
use blkmq_workbench::TextError;
use serde::Deserialize;
use toml::Spanned;

use super::allow::{hidden_certificate, user_number};
use super::given::{Given, Word};
use super::group::WrittenGroup;
use crate::control::name::{asked, shown};

/// A rule for clients as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, as in [[clients]] with name, weight or group beneath it")]
pub(super) struct WrittenRule {
    certificate: Option<String>,
    user: Option<Spanned<Word>>,
    address: Option<Spanned<String>>,
    export: Option<Spanned<String>>,
    name: Option<Spanned<String>>,
    weight: Option<Spanned<i64>>,
    group: Option<Spanned<String>>,
}

/// A rule, with the places of what has to suit the rest of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Planned {
    rule: Rule,
    /// Where the rule stands.
    place: String,
    /// The export that it asks for.
    export: Option<Given>,
}

/// Groups and rules, once they are checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Placements {
    groups: Vec<(String, u16)>,
    rules: Vec<Planned>,
}

/// Reads a weight, if one is written.
pub(super) fn weight(
    written: Option<&Spanned<i64>>,
    place: impl Fn(Range<usize>) -> String,
) -> Result<Option<u16>, TextError> {
    let Some(weight) = written else { return Ok(None) };
    let fits = u16::try_from(*weight.get_ref()).ok().filter(|weight| WEIGHTS.contains(weight));
    fits.map(Some).ok_or_else(|| {
        let (least, most) = WEIGHTS.into_inner();
        let what = format!("weight: {} is not within {least}..{most}", weight.get_ref());
        TextError { place: place(weight.span()), what }
    })
}

impl Placements {
    /// Checks groups and rules. `place`: where in the file a range of bytes is.
    pub(super) fn read(
        groups: &BTreeMap<Spanned<String>, WrittenGroup>,
        rules: &[Spanned<WrittenRule>],
        place: &dyn Fn(Range<usize>) -> String,
    ) -> Result<Self, TextError> {
        let fault = |span: Range<usize>, what: String| TextError { place: place(span), what };
        let mut read = Vec::new();
        // A path comes behind its beginnings, so a group comes behind its parent.
        for (path, group) in groups {
            let wrong = |what: String| fault(path.span(), what);
            let text = path.get_ref();
            check_group(text).map_err(|error| wrong(error.to_string()))?;
            if read.len() == MAX_GROUPS {
                return Err(wrong(format!("there are {} groups; at most {MAX_GROUPS} can be", groups.len())));
            }
            if let Some((parent, _)) = text.rsplit_once('/')
                && !read.iter().any(|(path, _)| path == parent)
            {
                let table = if parent.contains('/') { format!("\"{parent}\"") } else { parent.to_owned() };
                return Err(wrong(format!(
                    "the group '{text}' is in '{parent}', which is not there; add [groups.{table}]"
                )));
            }
            if let Some((key, what)) = group.fault(text) {
                return Err(fault(key, what));
            }
            let weight = weight(group.weight.as_ref(), place)?.unwrap_or(DEFAULT_WEIGHT);
            read.push((text.clone(), weight));
        }
        if let Some(rule) = rules.get(MAX_RULES) {
            let what = format!("there are {} tables [[clients]]; at most {MAX_RULES} can be", rules.len());
            return Err(fault(rule.span(), what));
        }
        let mut planned: Vec<Planned> = Vec::new();
        for written in rules {
            if let Some(before) = planned.iter().find(|before| before.is_for_all()) {
                let what = format!("no client comes here: the table [[clients]] at {} is for all", before.place);
                return Err(fault(written.span(), what));
            }
            planned.push(written.get_ref().read(&read, place(written.span()), place)?);
        }
        Ok(Self { groups: read, rules: planned })
    }

    /// Checks what the rules ask for. `exports`: the names of all exports. `names_clients`: clients that encrypt must
    /// show certificates.
    pub(super) fn check(&self, exports: &[&str], names_clients: bool) -> Result<(), TextError> {
        for Planned { rule, place, export } in &self.rules {
            if let Some(export) = export
                && !exports.contains(&rule.export.as_deref().unwrap_or_default())
            {
                let names: Vec<_> = exports.iter().map(|name| shown(name)).collect();
                return Err(export.fault(format!(
                    "there is no export '{}'; exports: {}",
                    export.text,
                    names.join(", ")
                )));
            }
            if rule.certificate.is_some() && !names_clients {
                let what = "no client shows a certificate without --tls-verify-peer".to_owned();
                return Err(TextError { place: place.clone(), what });
            }
        }
        Ok(())
    }

    /// Whether clients get weights or groups here, beside the weights of their exports.
    pub(super) fn set_weights(&self) -> bool {
        let is_weighted = |planned: &Planned| planned.rule.weight.is_some() || planned.rule.group.is_some();
        !self.groups.is_empty() || self.rules.iter().any(is_weighted)
    }

    /// The layout of each queue.
    pub(super) fn layout(&self) -> Layout {
        let rules = self.rules.iter().map(|planned| planned.rule.clone()).collect();
        Layout { groups: self.groups.clone(), rules, weights: BTreeMap::new() }
    }
}

impl Planned {
    fn is_for_all(&self) -> bool {
        let Rule { certificate, user, address, export, .. } = &self.rule;
        certificate.is_none() && user.is_none() && address.is_none() && export.is_none()
    }
}

impl WrittenRule {
    fn read(
        &self,
        groups: &[(String, u16)],
        place: String,
        at: &dyn Fn(Range<usize>) -> String,
    ) -> Result<Planned, TextError> {
        let Self { certificate, user, address, export, name, weight: _, group } = self;
        let fault = |span: Range<usize>, what: String| TextError { place: at(span), what };
        if user.is_some() && address.is_some() {
            let what = "a client has a user or an address: a user by a Unix socket, an address by TCP".to_owned();
            return Err(TextError { place, what });
        }
        if name.is_none() && self.weight.is_none() && group.is_none() {
            let what = "these clients get nothing here; say name, weight or group".to_owned();
            return Err(TextError { place, what });
        }
        if let Some(name) = name
            && (name.get_ref().is_empty() || name.get_ref().len() > 128 || name.get_ref().contains(is_hidden))
        {
            let what = "a client's name has 1 to 128 bytes, and no characters that control a line or cannot be seen";
            let what = format!("'{}': {what}", name.get_ref());
            return Err(fault(name.span(), what));
        }
        if let Some(name) = certificate.as_ref().filter(|name| name.contains(is_hidden)) {
            return Err(TextError { place, what: hidden_certificate(name) });
        }
        if let Some(group) = group
            && !groups.iter().any(|(path, _)| path == group.get_ref())
        {
            let known = match groups {
                [] => "no [groups] are there".to_owned(),
                groups => format!("groups: {}", groups.iter().map(|(path, _)| &**path).collect::<Vec<_>>().join(", ")),
            };
            return Err(fault(group.span(), format!("there is no group '{}'; {known}", group.get_ref())));
        }
        let number =
            |user: &Spanned<Word>| user_number(&user.get_ref().to_string()).map_err(|what| fault(user.span(), what));
        let network = |address: &Spanned<String>| {
            address.get_ref().parse().map_err(|error| fault(address.span(), format!("address: {error}")))
        };
        let weight = weight(self.weight.as_ref(), at)?;
        let rule = Rule {
            certificate: certificate.clone(),
            user: user.as_ref().map(number).transpose()?,
            address: address.as_ref().map(network).transpose()?,
            export: export.as_ref().map(|name| asked(name.get_ref()).to_owned()),
            name: name.as_ref().map(|name| name.get_ref().clone()),
            weight,
            group: group.as_ref().map(|group| group.get_ref().clone()),
        };
        let export = export.as_ref().map(|name| Given { text: name.get_ref().clone(), place: at(name.span()) });
        Ok(Planned { rule, place, export })
    }
}
