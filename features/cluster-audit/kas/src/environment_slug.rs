//! The slug of an environment, which GitLab makes of its name.

use sha2::{Digest as _, Sha256};

/// The longest slug.
const MAX_LENGTH: usize = 24;
/// The part of a longer slug, or of one that differs from the name, before its suffix.
const SHORTENED: usize = 17;
/// The digits of a suffix.
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
const SUFFIX: usize = 6;

/// Returns the slug of the environment with a name, as `Gitlab::Slug::Environment` makes it.
pub(super) fn slug_of(name: &str) -> String {
    let mut slug = String::new();
    for c in name.to_lowercase().chars() {
        let c = if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
        if slug.is_empty() && !c.is_ascii_lowercase() {
            slug.push_str("env-");
        }
        if c != '-' || !slug.ends_with('-') {
            slug.push(c);
        }
    }
    if slug.len() <= MAX_LENGTH && slug == name {
        return slug.strip_suffix('-').unwrap_or(&slug).to_owned();
    }
    slug.truncate(SHORTENED);
    if !slug.ends_with('-') {
        slug.push('-');
    }
    slug + &suffix(&Sha256::digest(name.as_bytes()))
}

/// Returns the last digits of a number in the base 36.
fn suffix(number: &[u8]) -> String {
    let modulus = 36_u64.pow(SUFFIX as u32);
    let mut rest = number.iter().fold(0, |rest, byte| (rest * 256 + u64::from(*byte)) % modulus);
    let mut digits = [0; SUFFIX];
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[(rest % 36) as usize];
        rest /= 36;
    }
    String::from_utf8_lossy(&digits).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slug_is_that_of_gitlab() {
        for (name, expected) in [
            ("production", "production"),
            ("foo-", "foo"),
            ("staging-1234567890123456", "staging-1234567890123456"),
            ("PRODUCTION", "production-vl4voz"),
            ("review/1-foo", "review-1-foo-9tdj0u"),
            ("1-foo", "env-1-foo-1k46wz"),
            ("*-foo", "env-foo-i1o6om"),
            ("foo--bar", "foo-bar-q006cp"),
            ("staging-12345678-01234567", "staging-12345678-f21q2q"),
            ("9-staging-123456789012345", "env-9-staging-123-f6hm7j"),
        ] {
            assert_eq!(slug_of(name), expected);
        }
        // From the tests of GitLab.
        assert_eq!(suffix(&[0xaa; 32]), "q517sa");
    }
}
