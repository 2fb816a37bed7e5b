//! The command `kas gitops diff`: what a sync would change.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{ValueEnum, ValueHint};
use manifest_diff::{DiffComment, application_lines, error_line, object_lines, printable, sentence};
use proto::{
    agent_configuration::gitops::GitRef,
    gitops::{DiffLine, DiffRequest, DiffSummary, ManifestFile, ObjectDiff, ObjectError},
};
use serde::Serialize;

use super::ProjectOptions;
use crate::CliError;

/// The time for a diff of thousands of objects.
const TIMEOUT: Duration = Duration::from_secs(330);
/// The most bytes of posted manifests.
const MAX_INPUT: u64 = 48 << 20;
/// The longest preview in Markdown, in bytes. Notes of GitLab have at most 1 MB, and nobody reads so much.
const MAX_MARKDOWN: usize = 60_000;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct DiffOptions {
    #[command(flatten)]
    project: ProjectOptions,
    /// Compare another version: a branch, tags/NAME, or the full id of a commit
    #[arg(long = "ref", value_name = "REF", value_parser = parse_reference)]
    reference: Option<GitRef>,
    /// Compare the manifests of another directory of the repository
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<String>,
    /// Compare manifests of this machine: a file, a directory with all below it, or - for standard input
    #[arg(short, long = "filename", value_name = "FILE", conflicts_with_all = ["reference", "directory"], value_hint = ValueHint::AnyPath)]
    filename: Vec<PathBuf>,
    /// The format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    #[default]
    Text,
    /// For a comment of a merge request
    Markdown,
    /// For programs
    Json,
}

/// A whole diff.
#[derive(Debug, Default, Serialize)]
struct Diff {
    objects: Vec<ObjectDiff>,
    errors: Vec<ObjectError>,
    summary: DiffSummary,
}

const EXAMPLES: &str = "\
Examples:
  kas gitops diff --agent production group/shop
  kas gitops diff --agent production group/shop --ref $CI_COMMIT_SHA --output markdown
  kas gitops diff --agent production group/shop -f manifests/

Exit codes:
  0   a sync would change nothing
  1   a sync would change something
  2   a sync would fail, or there is no diff
  64  the command line is invalid";

/// The exit code of a diff with changes.
const CHANGES: u8 = 1;
/// The exit code of errors.
const FAILED: u8 = 2;

impl DiffOptions {
    /// Returns the text to print, and the exit code.
    pub(super) async fn run(self) -> Result<(String, u8), CliError> {
        let failed = |error: CliError| CliError { code: FAILED, ..error };
        let Self { project, reference, directory, filename, output } = self;
        let files = if filename.is_empty() { None } else { Some(read_files(&filename).map_err(failed)?) };
        let request = DiffRequest { reference, directory, files };
        let body = serde_json::to_vec(&request).expect("it has keys that are text");
        let response = project.post("/diff", body.into(), TIMEOUT).await.map_err(failed)?;
        let diff =
            Diff::parse(&response).map_err(|error| failed(CliError::unavailable(error.to_string())))?;
        let text = match output {
            Output::Text => diff.to_string(),
            Output::Markdown => diff.to_markdown(),
            Output::Json => {
                format!("{}\n", serde_json::to_string_pretty(&diff).expect("it has keys that are text"))
            }
        };
        Ok((text, diff.exit_code()))
    }
}

/// A response that is no diff.
#[derive(Debug, thiserror::Error)]
enum DiffError {
    #[error("the response of the agent is invalid: {0}")]
    Invalid(#[from] serde_json::Error),
    #[error("the diff was cut before its end; try again")]
    Truncated,
}

/// A text that is no version of a repository.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it must be a branch, tags/NAME or the id of a commit")]
struct InvalidReference;

impl Diff {
    /// Parses the lines of a response. One without an end was cut.
    fn parse(body: &[u8]) -> Result<Self, DiffError> {
        let mut diff = Self::default();
        let mut ended = false;
        for line in body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice(line)? {
                DiffLine::Object(object) => diff.objects.push(object),
                DiffLine::Error(error) => diff.errors.push(error),
                DiffLine::End(summary) => (diff.summary, ended) = (summary, true),
            }
        }
        if ended { Ok(diff) } else { Err(DiffError::Truncated) }
    }

    fn exit_code(&self) -> u8 {
        match (self.errors.is_empty(), self.summary.has_changes()) {
            (false, _) => FAILED,
            (true, true) => CHANGES,
            (true, false) => 0,
        }
    }

    /// Returns a comment for a merge request. Nothing in it leaves its code.
    fn to_markdown(&self) -> String {
        let mut comment = DiffComment::new(MAX_MARKDOWN);
        self.errors.iter().for_each(|error| comment.push(&DiffLine::Error(error.clone())));
        self.objects.iter().for_each(|object| comment.push(&DiffLine::Object(object.clone())));
        comment.finish(&self.summary, "kas gitops diff")
    }
}

impl std::fmt::Display for Diff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.errors.iter().try_for_each(|error| writeln!(f, "{}", error_line(error)))?;
        self.objects.iter().try_for_each(|object| f.write_str(&object_lines(object)))?;
        for application in &self.summary.applications {
            writeln!(f, "  {}", application_lines(application).join("\n    "))?;
        }
        self.summary.notes.iter().try_for_each(|note| writeln!(f, "! {}", printable(note)))?;
        writeln!(f, "{}", sentence(&self.summary, self.errors.len(), str::to_owned))
    }
}

/// Parses what `--ref` names, with the names of Git.
fn parse_reference(text: &str) -> Result<GitRef, InvalidReference> {
    let is_commit =
        matches!(text.len(), 40 | 64) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let name = text.strip_prefix("refs/").unwrap_or(text);
    Ok(match (is_commit, name.strip_prefix("tags/")) {
        _ if text.is_empty() => return Err(InvalidReference),
        (true, _) => GitRef::Commit(text.to_owned()),
        (false, Some(tag)) => GitRef::Tag(tag.to_owned()),
        (false, None) => GitRef::Branch(name.strip_prefix("heads/").unwrap_or(name).to_owned()),
    })
}

fn read_files(paths: &[PathBuf]) -> Result<Vec<ManifestFile>, CliError> {
    let (mut files, mut left) = (Vec::new(), MAX_INPUT);
    for path in paths {
        match path.to_str() {
            Some("-") => files.push(read("standard input", std::io::stdin().lock(), &mut left)?),
            _ => read_path(path, true, &mut files, &mut left)?,
        }
    }
    Ok(files)
}

/// Reads a file, or those below a directory that can be manifests.
fn read_path(
    path: &Path,
    named: bool,
    files: &mut Vec<ManifestFile>,
    left: &mut u64,
) -> Result<(), CliError> {
    let unreadable = |error| CliError::usage(format!("{}: {error}", path.display()));
    if path.is_dir() {
        let entries: Result<Vec<_>, _> =
            path.read_dir().map_err(unreadable)?.map(|entry| entry.map(|entry| entry.path())).collect();
        let mut entries = entries.map_err(unreadable)?;
        entries.sort_unstable();
        return entries.iter().try_for_each(|entry| read_path(entry, false, files, left));
    }
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    if named || matches!(extension, "yaml" | "yml" | "json") {
        let file = std::fs::File::open(path).map_err(unreadable)?;
        files.push(read(&path.display().to_string(), file, left)?);
    }
    Ok(())
}

fn read(path: &str, reader: impl std::io::Read, left: &mut u64) -> Result<ManifestFile, CliError> {
    let mut content = String::new();
    let count = reader.take(*left + 1).read_to_string(&mut content);
    let count = count.map_err(|error| CliError::usage(format!("{path}: {error}")))? as u64;
    *left = left.checked_sub(count).ok_or_else(|| {
        CliError::usage(format!("{path}: all files together have more than {} MiB", MAX_INPUT >> 20))
    })?;
    Ok(ManifestFile { path: path.to_owned(), content })
}

#[cfg(test)]
mod tests {
    use proto::gitops::{CommitInfo, DiffAction, ObjectId};

    use serde_json::json;

    use super::*;

    fn object(action: DiffAction, name: &str) -> DiffLine {
        let object = ObjectId { kind: "ConfigMap".to_owned(), name: name.to_owned(), ..ObjectId::default() };
        DiffLine::Object(ObjectDiff {
            action,
            object,
            file: String::new(),
            note: String::new(),
            fields: Vec::new(),
        })
    }

    fn response(lines: &[DiffLine], ended: bool) -> Vec<u8> {
        let mut summary = DiffSummary { unchanged: 4, ..DiffSummary::default() };
        lines.iter().for_each(|line| summary.count(line));
        summary.reference = "branch main".to_owned();
        summary.commit = Some(CommitInfo { id: "c".repeat(40), ..CommitInfo::default() });
        let end = ended.then_some(DiffLine::End(summary));
        let lines = lines.iter().chain(&end).map(|line| serde_json::to_string(line).unwrap() + "\n");
        lines.collect::<String>().into_bytes()
    }

    #[test]
    fn diff_is_printed_for_people_and_for_a_comment() {
        let diff = Diff::parse(&response(&[object(DiffAction::Delete, "a")], true)).unwrap();
        let sentence = "1 to delete, 4 unchanged (branch main, commit cccccccccccc)";
        assert_eq!(diff.to_string(), format!("- delete ConfigMap a\n{sentence}\n"));
        let sentence = "1 to delete, 4 unchanged (`branch main, commit cccccccccccc`)";
        assert_eq!(diff.to_markdown(), format!("**{sentence}**\n\n* `- delete ConfigMap a`\n"));
    }

    #[test]
    fn application_of_the_manifests_is_described() {
        let application = json!({"object": {"group": "app.k8s.io", "kind": "Application", "namespace": "shop", "name": "web"},
            "file": "app.yaml:1", "descriptor": {"type": "shop", "version": "4.2", "description": "The\u{1b}[2J shop",
                "links": [{"description": "Runbook", "url": "https://example.com/runbook"}]}});
        let line = json!({"end": {"unchanged": 1, "applications": [application]}}).to_string();
        let diff = Diff::parse(line.as_bytes()).unwrap();
        let expected = [
            "  Application.app.k8s.io shop/web (app.yaml:1): shop 4.2, The?[2J shop",
            "    Runbook: https://example.com/runbook",
            "1 unchanged",
            "",
        ];
        assert_eq!((diff.to_string(), diff.exit_code()), (expected.join("\n"), 0));
        assert!(diff.to_markdown().contains("The?[2J shop; Runbook: https://example.com/runbook`"));
    }

    #[test]
    fn exit_code_says_whether_a_sync_changes_anything_or_fails() {
        let code = |lines: &[DiffLine]| Diff::parse(&response(lines, true)).unwrap().exit_code();
        let error = ObjectError { object: None, file: "a.yaml:1".to_owned(), message: "no".to_owned() };
        assert_eq!(code(&[]), 0);
        assert_eq!(code(&[object(DiffAction::Keep, "a")]), 0);
        assert_eq!(code(&[object(DiffAction::Delete, "a")]), 1);
        assert_eq!(code(&[DiffLine::Error(error), object(DiffAction::Delete, "a")]), 2);
        let cut = Diff::parse(&response(&[], false)).unwrap_err();
        assert!(matches!(cut, DiffError::Truncated), "{cut}");
    }

    #[test]
    fn notes_and_the_reference_have_no_control_characters() {
        let (reference, notes) = ("branch a\u{202e}\u{1b}[2J".to_owned(), vec!["b\n\u{1b}".to_owned()]);
        let commit = Some(CommitInfo { id: "c".repeat(40), ..CommitInfo::default() });
        let summary = DiffSummary { reference, commit, notes, ..DiffSummary::default() };
        let diff = Diff { summary, ..Diff::default() };
        assert_eq!(diff.to_string(), "! b??\nno objects (branch a??[2J, commit cccccccccccc)\n");
    }

    #[test]
    fn reference_is_a_branch_a_tag_or_a_commit() {
        for (text, expected) in [
            ("main", GitRef::Branch("main".to_owned())),
            ("feature/tags", GitRef::Branch("feature/tags".to_owned())),
            ("refs/heads/main", GitRef::Branch("main".to_owned())),
            ("tags/v1", GitRef::Tag("v1".to_owned())),
            ("refs/tags/v1", GitRef::Tag("v1".to_owned())),
            (&"a1".repeat(20), GitRef::Commit("a1".repeat(20))),
        ] {
            assert_eq!(parse_reference(text).unwrap(), expected);
        }
        assert!(parse_reference("").is_err());
    }

    #[test]
    fn manifests_of_a_directory_are_read_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str| std::fs::write(directory.path().join(name), name).unwrap();
        std::fs::create_dir(directory.path().join("deep")).unwrap();
        ["b.yaml", "deep/a.json", "note.txt"].iter().for_each(|name| write(name));
        let files = read_files(&[directory.path().to_owned(), directory.path().join("note.txt")]).unwrap();
        let contents: Vec<_> = files.iter().map(|file| &*file.content).collect();
        assert_eq!(contents, ["b.yaml", "deep/a.json", "note.txt"]);
        let error = read_files(&[directory.path().join("missing")]).unwrap_err();
        assert!(error.message.contains("missing: No such file"), "{}", error.message);
        let error = read("big", &b"12345"[..], &mut 4).unwrap_err();
        assert!(error.message.contains("big: all files together"), "{}", error.message);
    }
}
