//! Locations of the keys of a file, for errors about values that were parsed before.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{DuplicateKeyPolicy, Spanned};

/// Line and column of each key and of each element of a list, by its path (`agents[0].name`).
#[derive(Clone, Debug, Default)]
pub struct KeyLocations {
    places: HashMap<String, (u64, u64)>,
    /// The keys that a section has twice, each with the place of the second one.
    repeated: Vec<(String, (u64, u64))>,
}

/// A value: a mapping, a list, or any other value, which has no keys.
enum Node {
    Mapping(Vec<(Spanned<String>, Self)>),
    List(Vec<Spanned<Self>>),
    Other,
}

impl KeyLocations {
    /// Parses the text of a file. A text that is not YAML has no keys.
    pub fn parse(text: &str) -> Self {
        let mut keys = Self::default();
        // The visitor receives each entry of a mapping.
        let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
        if let Ok(node) = serde_saphyr::from_str_with_options::<Node>(text, options) {
            keys.insert("", node);
        }
        keys
    }

    fn insert(&mut self, section: &str, node: Node) {
        match node {
            Node::Mapping(entries) => {
                let mut names = HashSet::new();
                for (key, value) in entries {
                    let is_new = names.insert(key.value.clone());
                    let path =
                        if section.is_empty() { key.value } else { format!("{section}.{}", key.value) };
                    let place = (key.referenced.line(), key.referenced.column());
                    if !is_new {
                        self.repeated.push((path.clone(), place));
                    }
                    self.places.insert(path.clone(), place);
                    self.insert(&path, value);
                }
            }
            Node::List(elements) => {
                for (index, element) in elements.into_iter().enumerate() {
                    let path = format!("{section}[{index}]");
                    self.insert(&path, element.value);
                    self.places.insert(path, (element.referenced.line(), element.referenced.column()));
                }
            }
            Node::Other => {}
        }
    }

    /// Returns the keys that a section has twice, each with the place of the second one.
    pub fn repeated(&self) -> &[(String, (u64, u64))] {
        &self.repeated
    }

    /// Returns true if the file has this key.
    pub fn has(&self, key: &str) -> bool {
        self.places.contains_key(key)
    }

    /// Returns the paths of a key, in their order in the file. `[]` stands for each element of a list (`agents[].name`).
    pub fn matching(&self, key: &str) -> Vec<String> {
        let mut found: Vec<_> = self.places.iter().filter(|(path, _)| without_indexes(path) == key).collect();
        found.sort_by_key(|(_, place)| **place);
        found.into_iter().map(|(path, _)| path.clone()).collect()
    }

    /// Returns line and column of a key, or of the closest section around it that the file has.
    pub fn locate(&self, key: &str) -> Option<(u64, u64)> {
        let mut key = key;
        loop {
            if let Some(&at) = self.places.get(key) {
                return Some(at);
            }
            key = &key[..key.rfind(['.', '['])?];
        }
    }
}

/// Returns the path of a key with `[]` for each element of a list.
fn without_indexes(path: &str) -> String {
    let mut parts = path.split('[');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "[" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Node::Mapping(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = list.next_element()? {
            elements.push(element);
        }
        Ok(Node::List(elements))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_str<E>(self, _: &str) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_key_is_located_at_its_section() {
        let text = "agent:\n  listen:\n    address: '[::]:1'\n    of: [1, {a: b}]\nredis: {wait: true, age: 1.5}\nnone:\n";
        let keys = KeyLocations::parse(text);
        for (key, at) in [
            ("agent", Some((1, 1))),
            ("agent.listen.address", Some((3, 5))),
            ("agent.listen.network", Some((2, 3))),
            ("agent.listen.of[0]", Some((4, 10))),
            ("agent.listen.of[1].a", Some((4, 14))),
            ("agent.listen.of[1].b", Some((4, 13))),
            ("agent.listen.of[7]", Some((4, 5))),
            ("redis", Some((5, 1))),
            ("redis.wait", Some((5, 9))),
            ("redis.tls.enabled", Some((5, 1))),
            ("none", Some((6, 1))),
            ("identity.file", None),
        ] {
            assert_eq!(keys.locate(key), at, "{key}");
        }
        assert_eq!(KeyLocations::parse("a: [").locate("a"), None);
    }

    #[test]
    fn key_of_each_element_of_a_list_is_found() {
        let keys = KeyLocations::parse("b: [{a: [{c: 1}, {d: 2}]}, {a: [{c: 3}]}]\na: {c: 4}\n");
        assert_eq!(keys.matching("b[].a[].c"), ["b[0].a[0].c", "b[1].a[0].c"]);
        assert_eq!(keys.matching("a.c"), ["a.c"]);
        assert!(keys.matching("b[].c").is_empty() && keys.matching("").is_empty());
        assert!(keys.has("b[0].a[1].d") && !keys.has("b[0].a[1].c"));
    }

    #[test]
    fn repeated_key_is_located_at_the_last_one() {
        let keys = KeyLocations::parse("a: {b: 1}\nc:\n- {d: 1, d: 2}\na: 2\n");
        assert_eq!(keys.repeated(), [("c[0].d".to_owned(), (3, 10)), ("a".to_owned(), (4, 1))]);
        assert_eq!((keys.locate("a"), keys.locate("c")), (Some((4, 1)), Some((2, 1))));
    }
}
