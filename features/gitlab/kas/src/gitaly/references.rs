//! The advertisement of references, in which Git lists branches and their commits. It does no I/O.
//!
//! Git sends pkt-lines: four hexadecimal digits, which are the length of the line with these digits, and the content. `0000`
//! ends a list (gitprotocol-common(5), gitprotocol-http(5)). In smart HTTP, a line with the name of the service comes first:
//!
//! ```text
//! 001e# service=git-upload-pack\n
//! 0000
//! 010e<id> HEAD\0multi_ack symref=HEAD:refs/heads/main object-format=sha1 …\n
//! 003d<id> refs/heads/main\n
//! 0000
//! ```

use git::{Commit, CommitId, Reference};

/// The longest pkt-line with its length.
const MAX_LINE: usize = 65_520;
/// The line before the references.
const SERVICE: &[u8] = b"# service=git-upload-pack";
/// The longest name of a branch in bytes.
const MAX_BRANCH: usize = 1024;

/// Finds the commit of one reference in an advertisement. Its memory does not depend on the number of references.
#[derive(Debug)]
pub struct ReferenceScanner {
    /// The full name of the wanted reference, or `None` for `HEAD`.
    wanted: Option<String>,
    /// The beginning of a line whose rest has not arrived.
    partial: Vec<u8>,
    state: ScanState,
    /// The target of `HEAD`.
    head: Option<String>,
    /// True if the repository has a reference.
    any: bool,
    found: Option<CommitId>,
}

/// The result of a complete advertisement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolvedReference {
    /// The commit of the branch.
    Commit(Commit),
    /// The repository has no references.
    Empty,
    /// The repository has references, but not the wanted one.
    Missing,
}

/// The error of an advertisement that cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// A line does not begin with its length.
    #[error("a pkt-line has no valid length")]
    Length,
    /// The advertisement does not begin with the line of the service.
    #[error("the first pkt-line is not that of git-upload-pack")]
    Service,
    /// A line is not an id and a name.
    #[error("a reference is not an id and a name")]
    Reference,
    /// The line is an error of Git.
    #[error("Git reported an error")]
    Remote,
    /// The advertisement continues after its end, or ends early.
    #[error("the advertisement is incomplete")]
    Incomplete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanState {
    /// The line of the service, or the first reference, comes next.
    Start,
    /// The flush after the line of the service comes next.
    AfterService,
    /// The first reference, which has the capabilities, comes next.
    First,
    /// More references come.
    References,
    /// The advertisement has ended.
    End,
}

impl ReferenceScanner {
    /// Creates a scanner for a branch, a tag or `HEAD`. A commit is no reference: it is that of `HEAD`.
    pub fn new(reference: &Reference) -> Self {
        Self {
            wanted: match reference {
                Reference::Branch(name) => Some(format!("refs/heads/{name}")),
                Reference::Tag(name) => Some(format!("refs/tags/{name}")),
                Reference::Default | Reference::Commit(_) => None,
            },
            partial: Vec::new(),
            state: ScanState::Start,
            head: None,
            any: false,
            found: None,
        }
    }

    /// Parses the next bytes, which may end anywhere.
    pub fn push(&mut self, mut data: &[u8]) -> Result<(), ReferenceError> {
        while !data.is_empty() {
            let wanted = match self.partial.first_chunk::<4>() {
                None => 4,
                Some(length) => line_length(*length)?.max(4),
            };
            let (part, rest) = data.split_at(data.len().min(wanted - self.partial.len()));
            self.partial.extend_from_slice(part);
            data = rest;
            let Some(length) = self.partial.first_chunk::<4>() else { return Ok(()) };
            let length = line_length(*length)?;
            if self.partial.len() >= length.max(4) {
                let line = std::mem::take(&mut self.partial);
                self.line((length > 0).then(|| &line[4..]))?;
                // The next line uses the same memory.
                self.partial = line;
                self.partial.clear();
            }
        }
        Ok(())
    }

    /// Returns the result, after the last byte.
    pub fn finish(self) -> Result<ResolvedReference, ReferenceError> {
        if self.state != ScanState::End || !self.partial.is_empty() {
            return Err(ReferenceError::Incomplete);
        }
        let branch = match &self.wanted {
            Some(wanted) => Some(wanted.as_str()),
            None => self.head.as_deref(),
        };
        let branch = branch.map_or("HEAD", |name| name.strip_prefix("refs/heads/").unwrap_or(name));
        Ok(match self.found {
            Some(id) => ResolvedReference::Commit(Commit { id, branch: branch.to_owned() }),
            None if self.any => ResolvedReference::Missing,
            None => ResolvedReference::Empty,
        })
    }

    /// Handles a line without its length; `None` is a flush.
    fn line(&mut self, line: Option<&[u8]>) -> Result<(), ReferenceError> {
        let Some(line) = line else {
            self.state = match self.state {
                ScanState::AfterService => ScanState::First,
                ScanState::First | ScanState::References => ScanState::End,
                ScanState::Start => return Err(ReferenceError::Service),
                ScanState::End => return Err(ReferenceError::Incomplete),
            };
            return Ok(());
        };
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        if line.starts_with(b"ERR ") {
            return Err(ReferenceError::Remote);
        }
        match self.state {
            ScanState::Start if line == SERVICE => self.state = ScanState::AfterService,
            ScanState::Start => return Err(ReferenceError::Service),
            ScanState::AfterService | ScanState::End => return Err(ReferenceError::Incomplete),
            ScanState::First => {
                let end = line.iter().position(|byte| *byte == 0).ok_or(ReferenceError::Reference)?;
                self.state = ScanState::References;
                self.head = line[end + 1..].split(|byte| *byte == b' ').find_map(head_target);
                self.reference(&line[..end])?;
            }
            ScanState::References => self.reference(line)?,
        }
        Ok(())
    }

    fn reference(&mut self, line: &[u8]) -> Result<(), ReferenceError> {
        if line.starts_with(b"shallow ") {
            return Ok(());
        }
        let end = line.iter().position(|byte| *byte == b' ').ok_or(ReferenceError::Reference)?;
        let id: Option<CommitId> = str::from_utf8(&line[..end]).ok().and_then(|id| id.parse().ok());
        let (id, name) = (id.ok_or(ReferenceError::Reference)?, &line[end + 1..]);
        // An empty repository has only this line, for its capabilities, with an id of zeros.
        if name == b"capabilities^{}" {
            return Ok(());
        }
        self.any = true;
        let wanted = self.wanted.as_deref().unwrap_or("HEAD").as_bytes();
        // The commit of a tag with a message follows the tag itself.
        if name == wanted || name.strip_suffix(b"^{}").is_some_and(|name| name == wanted) {
            self.found = Some(id);
        }
        Ok(())
    }
}

/// Returns the length of a line with its four digits, or 0 for a flush.
fn line_length(digits: [u8; 4]) -> Result<usize, ReferenceError> {
    let hexadecimal = digits.iter().all(u8::is_ascii_hexdigit);
    let text = str::from_utf8(&digits).ok().filter(|_| hexadecimal);
    match text.and_then(|text| usize::from_str_radix(text, 16).ok()) {
        Some(0) => Ok(0),
        // 1 to 3 have meanings in version 2 of the protocol, which kas does not ask for.
        Some(length @ 4..=MAX_LINE) => Ok(length),
        _ => Err(ReferenceError::Length),
    }
}

/// Returns the target of `HEAD` if the capability names it.
fn head_target(capability: &[u8]) -> Option<String> {
    let target = capability.strip_prefix(b"symref=HEAD:")?;
    let target = str::from_utf8(target).ok().filter(|name| name.len() <= MAX_BRANCH)?;
    (!target.chars().any(char::is_control)).then(|| target.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: &str = "1111111111111111111111111111111111111111";
    const OTHER: &str = "2222222222222222222222222222222222222222";

    fn lines(lines: &[&str]) -> Vec<u8> {
        let encode = |line: &&str| match *line {
            "" => "0000".to_owned(),
            line => format!("{:04x}{line}", line.len() + 4),
        };
        lines.iter().map(encode).collect::<String>().into_bytes()
    }

    fn advertisement() -> Vec<u8> {
        lines(&[
            "# service=git-upload-pack\n",
            "",
            &format!("{MAIN} HEAD\0multi_ack symref=HEAD:refs/heads/main agent=git/2.47\n"),
            &format!("{OTHER} refs/heads/feature/x\n"),
            &format!("{MAIN} refs/heads/main\n"),
            &format!("{OTHER} refs/tags/v1\n"),
            &format!("{MAIN} refs/tags/v1^{{}}\n"),
            "",
        ])
    }

    fn scan(data: &[u8], branch: Option<&str>, chunk: usize) -> Result<ResolvedReference, ReferenceError> {
        scan_for(data, &Reference::of_branch(branch), chunk)
    }

    fn scan_for(
        data: &[u8],
        reference: &Reference,
        chunk: usize,
    ) -> Result<ResolvedReference, ReferenceError> {
        let mut scanner = ReferenceScanner::new(reference);
        data.chunks(chunk).try_for_each(|part| scanner.push(part))?;
        scanner.finish()
    }

    fn commit(id: &str, branch: &str) -> ResolvedReference {
        ResolvedReference::Commit(Commit { id: id.parse().unwrap(), branch: branch.into() })
    }

    #[test]
    fn branch_or_head_is_found_in_parts_of_any_size() {
        let data = advertisement();
        for chunk in [1, 3, 4, 5, 60, data.len()] {
            assert_eq!(scan(&data, None, chunk), Ok(commit(MAIN, "main")));
            assert_eq!(scan(&data, Some("feature/x"), chunk), Ok(commit(OTHER, "feature/x")));
            assert_eq!(scan(&data, Some("v1"), chunk), Ok(ResolvedReference::Missing), "a tag is no branch");
            let tag = |name: &str| scan_for(&data, &Reference::Tag(name.to_owned()), chunk);
            assert_eq!(tag("v1"), Ok(commit(MAIN, "refs/tags/v1")), "its commit, and not the tag");
            assert_eq!(tag("main"), Ok(ResolvedReference::Missing), "a branch is no tag");
        }
    }

    #[test]
    fn detached_head_has_no_branch() {
        let data = lines(&["# service=git-upload-pack", "", &format!("{MAIN} HEAD\0agent=git"), ""]);
        assert_eq!(scan(&data, None, 9), Ok(commit(MAIN, "HEAD")));
    }

    #[test]
    fn empty_repository_has_no_references() {
        let zeros = "0".repeat(40);
        let data =
            lines(&["# service=git-upload-pack", "", &format!("{zeros} capabilities^{{}}\0agent=git\n"), ""]);
        assert_eq!(scan(&data, None, 9), Ok(ResolvedReference::Empty));
        assert_eq!(scan(&data, Some("main"), 9), Ok(ResolvedReference::Empty));
        assert_eq!(
            scan(&lines(&["# service=git-upload-pack", "", ""]), None, 9),
            Ok(ResolvedReference::Empty)
        );
    }

    #[test]
    fn malformed_advertisement_is_refused() {
        let service = "# service=git-upload-pack\n";
        let first = format!("{MAIN} HEAD\0agent=git\n");
        for (data, expected) in [
            (b"".to_vec(), ReferenceError::Incomplete),
            (b"zzzz".to_vec(), ReferenceError::Length),
            (b"+01e".to_vec(), ReferenceError::Length),
            (b"0001".to_vec(), ReferenceError::Length),
            (b"0003".to_vec(), ReferenceError::Length),
            (b"fff1".to_vec(), ReferenceError::Length),
            (b"0000".to_vec(), ReferenceError::Service),
            (lines(&["# service=git-receive-pack\n"]), ReferenceError::Service),
            (lines(&["ERR no such repository"]), ReferenceError::Remote),
            (lines(&[service, &first]), ReferenceError::Incomplete),
            (lines(&[service, "", &first]), ReferenceError::Incomplete),
            (lines(&[service, "", &first, "", &first]), ReferenceError::Incomplete),
            (lines(&[service, "", MAIN]), ReferenceError::Reference),
            (lines(&[service, "", &first, MAIN]), ReferenceError::Reference),
            (lines(&[service, "", &first, "main refs/heads/main"]), ReferenceError::Reference),
        ] {
            for chunk in [1, 1000] {
                let text = String::from_utf8_lossy(&data);
                assert_eq!(scan(&data, None, chunk), Err(expected), "{text:?}");
            }
        }
    }
}
