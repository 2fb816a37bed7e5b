//! The MACs of the sections of a note.
//!
//! GitLab lets maintainers edit a note of kas, and runs the quick actions of a new text with the rights of its author. So kas keeps a section
//! of another agent only if a replica has written it.

use std::fmt::Write as _;

use gitops_wire::{NoteKey, NotePlace};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Signs and verifies the sections of one note.
#[derive(Clone, Debug)]
pub(super) struct SectionAuthenticator {
    key: NoteKey,
    place: NotePlace,
}

impl SectionAuthenticator {
    pub(super) fn new(key: NoteKey, place: NotePlace) -> Self {
        Self { key, place }
    }

    /// Returns the MAC of a section, as hexadecimal digits. The head has one line.
    pub(super) fn sign(&self, head: &str, text: &str) -> String {
        let mut digits = String::new();
        for byte in self.mac(head, text).finalize().into_bytes() {
            // Writing to a string does not fail.
            let _ = write!(digits, "{byte:02x}");
        }
        digits
    }

    /// Returns true if the digits are the MAC of this section in this note.
    pub(super) fn verify(&self, head: &str, text: &str, digits: &str) -> bool {
        decode(digits).is_some_and(|mac| self.mac(head, text).verify_slice(&mac).is_ok())
    }

    fn mac(&self, head: &str, text: &str) -> Hmac<Sha256> {
        let NotePlace { project, merge_request } = self.place;
        let begin = format!("kas preview section v1\n{project} {merge_request}\n{head}\n");
        let mac = Hmac::<Sha256>::new_from_slice(self.key.expose()).expect("any length is a key");
        mac.chain_update(begin.as_bytes()).chain_update(text.as_bytes())
    }
}

fn decode(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_is_of_one_section_in_one_note() {
        let with = |key: u8, merge_request| {
            SectionAuthenticator::new(NoteKey::new([key; 32]), NotePlace { project: 7, merge_request })
        };
        let mac = with(1, 12).sign("7 shop a", "text");
        assert_eq!(mac.len(), 64);
        assert!(with(1, 12).verify("7 shop a", "text", &mac));
        assert!(!with(1, 13).verify("7 shop a", "text", &mac), "another merge request");
        assert!(!with(2, 12).verify("7 shop a", "text", &mac), "another token");
        assert!(!with(1, 12).verify("7 shop b", "text", &mac));
        assert!(!with(1, 12).verify("7 shop a", "text\n/merge", &mac));
        for wrong in ["", "0", "zz", &mac[..62], "\u{e9}"] {
            assert!(!with(1, 12).verify("7 shop a", "text", wrong), "{wrong}");
        }
    }
}
