//! The allowed differences between headers, from the table in `docs/protocol.md`.

use std::collections::{BTreeMap, BTreeSet};

const DOCUMENT: &str = include_str!("../../../../docs/protocol.md");
const CHAPTER: &str = "## Differences of responses through kas";

/// The permitted difference of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    /// kas sets the header, whether or not the cluster did.
    Added,
    /// Both sides have the header, with different values.
    Varies,
    /// The header concerns one connection.
    Hop,
    /// The header delimits the body in HTTP/1.1.
    Framing,
}

/// The documented differences, by header.
pub(super) struct AllowedDifferences(BTreeMap<String, Difference>);

impl AllowedDifferences {
    /// Parses the table in `docs/protocol.md`.
    ///
    /// # Panics
    ///
    /// If the document has no such table.
    pub(super) fn documented() -> Self {
        let chapter = DOCUMENT.split_once(CHAPTER).expect("the chapter in docs/protocol.md").1;
        let rows = chapter.lines().take_while(|line| !line.starts_with("## ")).filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
            let name = cells.next()?.trim_end_matches('`').to_lowercase();
            let difference = match cells.next()? {
                "added" => Difference::Added,
                "varies" => Difference::Varies,
                "hop" => Difference::Hop,
                "framing" => Difference::Framing,
                other => panic!("docs/protocol.md: unknown difference {other:?} of {name}"),
            };
            Some((name, difference))
        });
        let allowed: BTreeMap<_, _> = rows.collect();
        assert!(!allowed.is_empty(), "docs/protocol.md has no table of differences");
        Self(allowed)
    }

    /// Compares headers. Returns descriptions of the forbidden differences, and the names of headers with allowed ones.
    pub(super) fn compare(
        &self,
        direct: &[(String, String)],
        through: &[(String, String)],
    ) -> (Vec<String>, BTreeSet<String>) {
        let values = |headers: &[(String, String)], name: &str| -> Vec<String> {
            headers.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone()).collect()
        };
        let (mut refused, mut seen) = (Vec::new(), BTreeSet::new());
        let names: BTreeSet<&String> = direct.iter().chain(through).map(|(name, _)| name).collect();
        for name in names {
            let (direct, through) = (values(direct, name), values(through, name));
            if direct == through {
                continue;
            }
            let allowed = match self.0.get(name) {
                Some(Difference::Added) => !through.is_empty(),
                Some(Difference::Varies) => direct.len() == through.len(),
                Some(Difference::Hop) => true,
                Some(Difference::Framing) => direct.is_empty() || through.is_empty(),
                None => false,
            };
            if allowed {
                seen.insert(name.clone());
            } else {
                refused.push(format!("header {name}: {direct:?} without the tunnel, {through:?} through it"));
            }
        }
        (refused, seen)
    }
}

#[test]
fn only_documented_differences_are_allowed() {
    let allowed = AllowedDifferences::documented();
    let headers = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let direct = headers(&[("date", "a"), ("content-type", "x")]);
    let (refused, seen) =
        allowed.compare(&direct, &headers(&[("date", "b"), ("content-type", "x"), ("x-request-id", "1")]));
    assert_eq!((refused.len(), seen.len()), (0, 2));
    for through in [&[("date", "a")][..], &[("content-type", "x")], &[("date", "a"), ("content-type", "y")]] {
        assert_eq!(allowed.compare(&direct, &headers(through)).0.len(), 1, "{through:?}");
    }
}
