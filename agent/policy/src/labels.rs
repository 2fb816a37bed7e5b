//! The labels of the namespaces of the cluster, as far as agentk knows them.

use std::collections::{BTreeMap, BTreeSet};

use proto::LabelSelector;

/// The most bytes of all namespaces and labels.
const MAX_BYTES: usize = 32 << 20;
/// The bytes of a namespace, and of a label, beside their text.
const OVERHEAD: usize = 128;

/// The keys of labels.
pub type LabelKeys = BTreeSet<String>;

/// The labels of one namespace.
type LabelMap = BTreeMap<String, String>;

/// The labels of namespaces, of which only those with some keys are kept. The labels of a namespace that does not exist, or that is beyond the
/// limit, are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceLabels {
    /// The keys, or the reason why no labels are known.
    keys: Result<LabelKeys, &'static str>,
    namespaces: BTreeMap<String, LabelMap>,
    /// The bytes of all namespaces and labels.
    bytes: usize,
}

/// The part that the labels of a namespace had in a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LabelUse {
    /// No rule depended on them.
    Unused,
    /// A rule was decided by them.
    Known,
    /// A rule depended on them, and they are not known.
    Unknown,
}

impl Default for NamespaceLabels {
    fn default() -> Self {
        Self::unknown(Self::UNREAD)
    }
}

impl NamespaceLabels {
    /// The problem until labels have been read.
    pub const UNREAD: &str = "agentk has not read them yet";

    /// Returns the state in which no labels are known, for this reason.
    pub fn unknown(problem: &'static str) -> Self {
        Self { keys: Err(problem), namespaces: BTreeMap::new(), bytes: 0 }
    }

    /// Returns the state of a cluster without namespaces, in which labels with these keys are kept.
    pub fn empty(keys: LabelKeys) -> Self {
        Self { keys: Ok(keys), namespaces: BTreeMap::new(), bytes: 0 }
    }

    /// Returns whether labels with all these keys are known.
    pub fn covers(&self, keys: &LabelKeys) -> bool {
        self.keys.as_ref().is_ok_and(|known| keys.is_subset(known))
    }

    /// Returns the reason why no labels are known, if there is one.
    pub fn problem(&self) -> Option<&'static str> {
        self.keys.as_ref().err().copied()
    }

    /// Sets the labels of a namespace. They are not known if there are too many.
    pub fn set(&mut self, namespace: &str, labels: LabelMap) {
        if let Some(before) = self.namespaces.remove(namespace) {
            self.bytes -= size(namespace, &before);
        }
        let labels: LabelMap = labels.into_iter().filter(|(key, _)| self.keeps(key)).collect();
        let bytes = self.bytes + size(namespace, &labels);
        if bytes <= MAX_BYTES {
            self.bytes = bytes;
            self.namespaces.insert(namespace.to_owned(), labels);
        }
    }

    /// Returns whether a selector selects a namespace, or `None` if its labels are not known. One without requirements selects all.
    pub fn selects(&self, selector: &LabelSelector, namespace: &str) -> Option<bool> {
        if selector.is_empty() {
            return Some(true);
        }
        let labels = self.namespaces.get(namespace)?;
        let is_kept = selector.requirements().all(|(key, ..)| self.keeps(key));
        is_kept.then(|| selector.matches(|key| labels.get(key).map(String::as_str)))
    }

    fn keeps(&self, key: &str) -> bool {
        self.keys.as_ref().is_ok_and(|keys| keys.contains(key))
    }
}

fn size(namespace: &str, labels: &LabelMap) -> usize {
    let label = |(key, value): (&String, &String)| OVERHEAD + key.len() + value.len();
    OVERHEAD + namespace.len() + labels.iter().map(label).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use proto::LabelOperator;

    use super::*;

    fn labels(of: &[(&str, &str)]) -> LabelMap {
        of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn keys(of: &[&str]) -> LabelKeys {
        of.iter().map(|&key| key.to_owned()).collect()
    }

    fn selector(key: &str, operator: LabelOperator, values: &[&str]) -> LabelSelector {
        let mut selector = LabelSelector::default();
        let values: Vec<_> = values.iter().map(|&value| value.to_owned()).collect();
        selector.require(key, operator, &values).unwrap();
        selector
    }

    #[test]
    fn only_labels_with_the_keys_are_kept_and_compared() {
        let with = |of: &[(&str, &str)]| {
            let mut known = NamespaceLabels::empty(keys(&["team"]));
            known.set("a", labels(of));
            known
        };
        let mut known = with(&[("team", "shop"), ("note", "x")]);
        assert_eq!(known, with(&[("team", "shop"), ("note", "y"), ("other", "z")]));
        for other in [&[("team", "x")][..], &[("note", "x")], &[]] {
            assert_ne!(known, with(other), "{other:?}");
        }
        let of_shop = selector("team", LabelOperator::In, &["shop"]);
        assert_eq!((known.selects(&of_shop, "a"), known.selects(&of_shop, "b")), (Some(true), None));
        known.set("a", labels(&[]));
        assert_eq!(known.selects(&of_shop, "a"), Some(false));
    }

    #[test]
    fn negative_selector_does_not_select_without_the_labels() {
        let unprotected = selector("protected", LabelOperator::DoesNotExist, &[]);
        let mut known = NamespaceLabels::empty(keys(&["team"]));
        known.set("a", labels(&[("team", "shop"), ("protected", "yes")]));
        assert_eq!(known.selects(&unprotected, "a"), None, "labels with this key are not kept");
        assert!(!known.covers(&keys(&["protected", "team"])) && known.covers(&keys(&["team"])));
        for unknown in [NamespaceLabels::default(), NamespaceLabels::empty(keys(&["protected"]))] {
            assert_eq!(unknown.selects(&unprotected, "a"), None);
        }
        assert!(!NamespaceLabels::default().covers(&keys(&[])));
    }

    #[test]
    fn namespaces_beyond_the_limit_are_not_known() {
        let large = "x".repeat(1 << 20);
        let of_large = || labels(&[("team", &large)]);
        assert_eq!(size("n", &labels(&[("team", "shop")])), 2 * OVERHEAD + 9);
        let mut known = NamespaceLabels::empty(keys(&["team"]));
        let names: Vec<_> = (0..32).map(|number| format!("n{number}")).collect();
        names.iter().for_each(|name| known.set(name, of_large()));
        let has_team = selector("team", LabelOperator::Exists, &[]);
        let knows = |known: &NamespaceLabels, name| known.selects(&has_team, name).is_some();
        assert!(names[..31].iter().all(|name| knows(&known, name)) && !knows(&known, "n31"));
        known.set("n0", of_large());
        assert!(knows(&known, "n0") && known.bytes <= MAX_BYTES, "a namespace replaces itself");
        known.set("n0", labels(&[]));
        known.set("n31", of_large());
        assert!(knows(&known, "n31"));
    }
}
