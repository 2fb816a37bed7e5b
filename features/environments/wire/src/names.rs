//! The names of environments and of their projects.

/// The longest path of a project, in bytes: that of GitLab.
const MAX_PROJECT: usize = 255;

/// Returns whether a text is the path of a project, like `group/app`.
pub fn is_project(text: &str) -> bool {
    (1..=MAX_PROJECT).contains(&text.len())
        && text.split('/').all(|part| !part.is_empty())
        && !text.contains(|c: char| c == ':' || c.is_control() || c.is_whitespace())
}

/// Returns whether a text can be the name of an environment. GitLab allows letters, digits, spaces, `-`, `_`, `/`, `$`, `.`, `{` and `}`.
pub fn is_name(text: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b" -_/${}.".contains(&byte);
    (1..=MAX_PROJECT).contains(&text.len()) && text.bytes().all(valid)
}

/// Returns whether a text is a DNS label (RFC 1123), like the name of a namespace.
pub fn is_label(text: &str) -> bool {
    let end = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && end(bytes.first())
        && end(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}
