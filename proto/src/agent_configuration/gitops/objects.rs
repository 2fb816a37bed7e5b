//! Which objects a project may have, and what becomes of those that others have made or changed.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::FieldPath;

/// The policy for objects that exist without this project.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InventoryPolicy {
    /// No object is taken over: a manifest of such an object is an error.
    #[default]
    #[serde(alias = "")]
    MustMatch,
    /// Objects that belong to no other project are taken over.
    AdoptIfNoInventory,
    /// All objects are taken over.
    AdoptAll,
}

/// Kinds of objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceFilter {
    /// API groups; `*` is all, and the empty string is the core group.
    pub api_groups: Vec<String>,
    /// Kinds; `*` is all.
    pub kinds: Vec<String>,
}

/// The reaction to a change of an object by somebody else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SelfHeal {
    /// The object is applied again.
    #[default]
    Heal,
    /// The change is reported.
    Report,
    /// Nothing happens before the next commit.
    Ignore,
}

/// The reaction to a field that Git has and another manager has set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conflicts {
    /// The value of Git is written.
    #[default]
    Force,
    /// The object is not written, and the conflict is reported.
    Report,
}

/// Fields of objects that are left to others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IgnoredFields {
    /// Kinds: `Deployment.apps`, `Deployment` in any API group, or `*` for all.
    pub kinds: Vec<String>,
    /// The names of the objects. Without an entry, all objects of these kinds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// The paths of the fields.
    pub paths: Vec<FieldPath>,
}

impl IgnoredFields {
    pub(super) fn is_about(&self, group: &str, kind: &str, name: &str) -> bool {
        (self.names.is_empty() || self.names.iter().any(|entry| entry == name))
            && self.kinds.iter().any(|entry| match entry.split_once('.') {
                Some((only, of)) => (only, of) == (kind, group),
                None => entry == "*" || entry == kind,
            })
    }
}

impl ResourceFilter {
    pub(super) fn matches(&self, group: &str, kind: &str) -> bool {
        let has = |list: &[String], value: &str| list.iter().any(|entry| entry == "*" || entry == value);
        has(&self.api_groups, group) && has(&self.kinds, kind)
    }
}

impl Serialize for SelfHeal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Heal => serializer.serialize_bool(true),
            Self::Report => serializer.serialize_str("report"),
            Self::Ignore => serializer.serialize_bool(false),
        }
    }
}

impl<'de> Deserialize<'de> for SelfHeal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = SelfHeal;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, report or false")
            }

            fn visit_bool<E: de::Error>(self, heals: bool) -> Result<SelfHeal, E> {
                Ok(if heals { SelfHeal::Heal } else { SelfHeal::Ignore })
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<SelfHeal, E> {
                match word {
                    "report" => Ok(SelfHeal::Report),
                    _ => Err(E::invalid_value(de::Unexpected::Str(word), &self)),
                }
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}
