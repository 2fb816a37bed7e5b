//! `ReferenceScanner` with any advertisement of references, in parts of any size.
//!
//! * The first byte is the size of the parts. The result does not depend on it.
//! * A commit that is found has the wanted branch, and its id is in the input.
//! * An advertisement without the last flush is not accepted.

use kas_gitlab::gitaly::{ReferenceError, ReferenceScanner, ResolvedReference};

/// Checks one input.
pub fn run(data: &[u8]) {
    let Some((size, data)) = data.split_first() else { return };
    for branch in [None, Some("main"), Some("feature/x")] {
        let whole = scan(data, branch, data.len().max(1));
        assert_eq!(scan(data, branch, usize::from(*size).max(1)), whole);
        let Ok(resolved) = whole else { continue };
        assert!(data.ends_with(b"0000"), "{resolved:?}");
        if let ResolvedReference::Commit(commit) = resolved {
            assert!(branch.is_none_or(|branch| branch == commit.branch), "{commit:?}");
            let id = commit.id.as_str().as_bytes();
            assert!(data.windows(id.len()).any(|window| window == id), "{commit:?}");
            assert!(!commit.branch.chars().any(char::is_control), "{commit:?}");
        }
    }
}

fn scan(data: &[u8], branch: Option<&str>, size: usize) -> Result<ResolvedReference, ReferenceError> {
    let mut scanner = ReferenceScanner::new(&git::Reference::of_branch(branch));
    data.chunks(size).try_for_each(|part| scanner.push(part))?;
    scanner.finish()
}
