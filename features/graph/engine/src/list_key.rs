//! The place of an object in lists, with which a caller requests the next page.

use std::{fmt, str::FromStr};

/// The place of an object in lists. It needs no object: those after the place of a deleted object are the same as before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListKey {
    pub(crate) namespace: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) group: String,
}

/// A text that is no [`ListKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use the value of `continue` of the page before")]
pub struct InvalidListKey;

/// `<namespace>/<kind>/<name>/<group>`. Only the name could contain a slash.
impl fmt::Display for ListKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, kind, name, group } = self;
        write!(f, "{namespace}/{kind}/{name}/{group}")
    }
}

impl FromStr for ListKey {
    type Err = InvalidListKey;

    fn from_str(text: &str) -> Result<Self, InvalidListKey> {
        let (namespace, rest) = text.split_once('/').ok_or(InvalidListKey)?;
        let (kind, rest) = rest.split_once('/').ok_or(InvalidListKey)?;
        let (name, group) = rest.rsplit_once('/').ok_or(InvalidListKey)?;
        if kind.is_empty() || name.is_empty() {
            return Err(InvalidListKey);
        }
        let own = str::to_owned;
        Ok(Self { namespace: own(namespace), kind: own(kind), name: own(name), group: own(group) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_read_as_it_is_written() {
        for text in ["shop/Pod/web-1/", "/Node/n1/", "shop/Certificate/web/cert-manager.io", "a/Odd/x/y/z"] {
            assert_eq!(text.parse::<ListKey>().unwrap().to_string(), text);
        }
        for junk in ["", "3e0c", "a/b", "a/b/c", "///", "a//web/apps", "a/Pod//"] {
            assert_eq!(junk.parse::<ListKey>(), Err(InvalidListKey), "{junk}");
        }
    }
}
