//! The names of kinds, as people write them.

use std::{convert::Infallible, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The longest name, in bytes.
const MAX_LENGTH: usize = 253;

/// A kind or a plural, with or without its group: `Pod`, `deployments.apps`, `v1/nodes`, `apps/v1/deployments`.
///
/// A version has no meaning: the graph has each object once, in the version that the API server prefers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KindName {
    kind: String,
    /// `None` for any group; empty for the core group.
    group: Option<String>,
}

impl KindName {
    /// Returns the kind or the plural.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Returns whether a resource has this kind or this plural, in any case.
    pub fn is(&self, group: &str, kind: &str, plural: &str) -> bool {
        let same = |name: &str| self.kind.eq_ignore_ascii_case(name);
        (same(kind) || same(plural)) && self.group.as_ref().is_none_or(|known| known == group)
    }
}

impl FromStr for KindName {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let parts: Vec<&str> = text.split('/').collect();
        let (kind, group) = match *parts {
            [_version, kind] => (kind, Some("")),
            [group, _version, kind] => (kind, Some(group)),
            _ => text.split_once('.').map_or((text, None), |(kind, group)| (kind, Some(group))),
        };
        Ok(Self { kind: kind.to_owned(), group: group.map(str::to_owned) })
    }
}

impl fmt::Display for KindName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, group } = self;
        match group.as_deref() {
            None => f.write_str(kind),
            Some("") => write!(f, "v1/{kind}"),
            Some(group) => write!(f, "{kind}.{group}"),
        }
    }
}

impl Serialize for KindName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KindName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let of_names = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'/');
        let name: Self = text.parse().unwrap_or_else(|error| match error {});
        if name.kind.is_empty()
            || text.len() > MAX_LENGTH
            || !text.bytes().all(of_names)
            || name.kind.contains('/')
        {
            return Err(de::Error::custom(
                "write a kind or a plural, with or without its group, such as Pod, deployments.apps or v1/nodes",
            ));
        }
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(name: &str, group: &str, kind: &str, plural: &str) -> bool {
        let name: KindName = name.parse().unwrap();
        name.is(group, kind, plural)
    }

    #[test]
    fn kind_has_many_names() {
        for name in
            ["Deployment", "deployments", "deployments.apps", "Deployment.apps", "apps/v1/deployments"]
        {
            assert!(is(name, "apps", "Deployment", "deployments"), "{name}");
            assert!(!is(name, "apps", "DaemonSet", "daemonsets"), "{name}");
        }
        assert!(is("Deployment", "example.com", "Deployment", "deployments"));
        assert!(!is("apps/v1/deployments", "example.com", "Deployment", "deployments"));
        assert!(is("v1/nodes", "", "Node", "nodes") && !is("v1/nodes", "example.com", "Node", "nodes"));
    }

    #[test]
    fn name_is_read_as_it_is_written() {
        for text in ["Pod", "deployments.apps", "v1/nodes"] {
            let name: KindName = serde_json::from_value(text.into()).unwrap();
            assert_eq!(serde_json::to_value(&name).unwrap(), text);
        }
        for wrong in ["", "a b", "a/b/c/d", "v1/", "é", &"x".repeat(254)] {
            assert!(serde_json::from_value::<KindName>(wrong.into()).is_err(), "{wrong}");
        }
    }
}
