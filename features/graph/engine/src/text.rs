//! Short texts: shared where many objects have the same one, and cut where they are too long.

use std::{collections::HashSet, sync::Arc};

/// The longest text of one object's message, in bytes.
pub(crate) const MAX_MESSAGE: usize = 512;
/// The longest name, label or other short text, in bytes. Names of Kubernetes have at most 253.
pub(crate) const MAX_NAME: usize = 256;

/// Texts that many objects have, such as namespaces, labels and images. Each is stored once.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    texts: HashSet<Arc<str>>,
    /// The number of texts after the last purge.
    purged: usize,
}

impl Interner {
    /// Returns the shared copy of a text, which is cut after [`MAX_NAME`] bytes.
    pub(crate) fn get(&mut self, text: &str) -> Arc<str> {
        let text = cut(text, MAX_NAME);
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        if self.texts.len() > 1000 + 2 * self.purged {
            self.texts.retain(|text| Arc::strong_count(text) > 1);
            self.purged = self.texts.len();
        }
        let text: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&text));
        text
    }
}

/// Returns the beginning of a text, with at most this many bytes.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_stored_once() {
        let mut interner = Interner::default();
        let (first, second) = (interner.get("a"), interner.get("a"));
        assert!(Arc::ptr_eq(&first, &second));
    }

    #[test]
    fn texts_that_nobody_has_are_forgotten() {
        let mut interner = Interner::default();
        let kept = interner.get("kept");
        for n in 0..10_000 {
            interner.get(&n.to_string());
        }
        assert!(interner.texts.len() <= 1002, "{}", interner.texts.len());
        assert!(Arc::ptr_eq(&kept, &interner.get("kept")));
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("ab", 2), "ab");
    }
}
