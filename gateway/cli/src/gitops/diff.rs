//! The command `kas gitops diff`: what a sync would change.

use std::{
    fmt::Write as _,
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{ValueEnum, ValueHint};
use proto::{
    agent_configuration::gitops::GitRef,
    gitops::{
        DiffAction, DiffLine, DiffRequest, DiffSummary, FieldDiff, ManifestApplication, ManifestFile,
        ObjectDiff, ObjectError,
    },
    graph::{ApplicationDescriptor, ApplicationLink},
};
use serde::Serialize;
use serde_json::Value;
use similar::{ChangeTag, TextDiff};

use super::{ProjectOptions, text::short};
use crate::{CliError, table::printable};

/// The time for a diff of thousands of objects.
const TIMEOUT: Duration = Duration::from_secs(330);
/// The most bytes of posted manifests.
const MAX_INPUT: u64 = 48 << 20;
/// The longest preview in Markdown, in bytes. Notes of GitLab have at most 1 MB, and nobody reads so much.
const MAX_MARKDOWN: usize = 60_000;
/// The longest value on the line of its field, in characters.
const MAX_INLINE: usize = 100;
/// The lines of a long text around each difference.
const CONTEXT: usize = 2;

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

    /// Returns one sentence about everything. `show` makes the names of the version harmless.
    fn sentence(&self, show: impl Fn(&str) -> String) -> String {
        let DiffSummary { reference, commit, create, change, recreate, delete, keep, unchanged, .. } =
            &self.summary;
        let counts = [
            (create, "to create"),
            (change, "to change"),
            (recreate, "to delete and create again"),
            (delete, "to delete"),
            (keep, "left Git and stay"),
            (unchanged, "unchanged"),
        ];
        let counts = counts.iter().filter(|(count, _)| **count > 0);
        let mut parts: Vec<_> = counts.map(|(count, what)| format!("{count} {what}")).collect();
        if parts.is_empty() {
            parts.push("no objects".to_owned());
        }
        let mut sentence = parts.join(", ");
        if let Some(commit) = commit {
            let version = format!("{reference}, commit {}", short(&commit.id));
            let _ = write!(sentence, " ({})", show(&printable(&version)));
        }
        match self.errors.len() {
            0 => {}
            1 => sentence += "; 1 error, which stops a sync",
            errors => {
                let _ = write!(sentence, "; {errors} errors, which stop a sync");
            }
        }
        sentence
    }

    /// Returns the blocks of lines of all errors, objects and Applications.
    fn blocks(&self) -> impl Iterator<Item = String> {
        let objects = self.objects.iter().map(block);
        self.errors
            .iter()
            .map(error_line)
            .chain(objects)
            .chain(self.summary.applications.iter().map(application))
    }

    /// Returns a comment for a merge request. Nothing in it leaves the code block.
    fn to_markdown(&self) -> String {
        let mut text = String::new();
        let mut left = 0;
        for block in self.blocks() {
            if text.len() + block.len() <= MAX_MARKDOWN { text += &block } else { left += 1 }
        }
        let fence = "`".repeat(longest_fence(&text).max(2) + 1);
        let mut markdown = format!("**{}**\n", self.sentence(code_span));
        if !text.is_empty() {
            let _ = write!(markdown, "\n{fence}diff\n{text}{fence}\n");
        }
        if left > 0 {
            let _ = write!(markdown, "\n{left} more are not shown, because the comment would be too long.\n");
        }
        for note in &self.summary.notes {
            let _ = write!(markdown, "\n{}\n", code_span(&printable(note)));
        }
        markdown
    }
}

/// Returns a text as code in a line of Markdown, where it mentions nobody and has no links.
fn code_span(text: &str) -> String {
    let fence = "`".repeat(longest_fence(text) + 1);
    // A space at both ends is not shown, and separates a backtick from the fence.
    let space = if fence.len() > 1 { " " } else { "" };
    format!("{fence}{space}{text}{space}{fence}")
}

/// Returns the length of the longest run of backticks.
fn longest_fence(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or_default()
}

impl std::fmt::Display for Diff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.blocks().try_for_each(|block| f.write_str(&block))?;
        self.summary.notes.iter().try_for_each(|note| writeln!(f, "! {}", printable(note)))?;
        writeln!(f, "{}", self.sentence(str::to_owned))
    }
}

fn error_line(error: &ObjectError) -> String {
    let file = if error.file.is_empty() { String::new() } else { format!("{}: ", error.file) };
    let object = error.object.as_ref().map(|id| format!("{id}: ")).unwrap_or_default();
    format!("! {}\n", printable(&format!("{file}{object}{}", error.message)))
}

/// Returns the lines of an object: each begins with `+`, `-` or a space, as in a patch.
fn block(diff: &ObjectDiff) -> String {
    let (sign, action) = match diff.action {
        DiffAction::Create => ('+', "create"),
        DiffAction::Change => ('~', "change"),
        DiffAction::Recreate => ('±', "delete and create again"),
        DiffAction::Delete => ('-', "delete"),
        DiffAction::Keep => ('=', "keep"),
    };
    let mut head = format!("{action} {}", diff.object);
    if !diff.file.is_empty() {
        let _ = write!(head, " ({})", diff.file);
    }
    if !diff.note.is_empty() {
        let _ = write!(head, ": {}", diff.note);
    }
    let mut text = format!("{sign} {}\n", printable(&head));
    diff.fields.iter().for_each(|field| write_field(&mut text, field));
    text
}

/// Returns the lines of an Application of `app.k8s.io` in the manifests.
fn application(ManifestApplication { object, file, descriptor }: &ManifestApplication) -> String {
    let ApplicationDescriptor { application_type, version, description, links, .. } = descriptor;
    let words = [application_type, version].into_iter().filter(|word| !word.is_empty()).map(String::as_str);
    let mut head = format!("{object} ({file}): {}", words.collect::<Vec<_>>().join(" "));
    if !description.is_empty() {
        let _ = write!(head, ", {description}");
    }
    let mut text = format!("  {}\n", printable(&head));
    for ApplicationLink { description, url } in links {
        let line = if description.is_empty() { url.clone() } else { format!("{description}: {url}") };
        let _ = writeln!(text, "    {}", printable(&line));
    }
    text
}

fn write_field(text: &mut String, FieldDiff { path, before, after }: &FieldDiff) {
    let mut line = |sign: char, indent: usize, content: &str| {
        let content = printable(content);
        let _ = writeln!(text, "{}", format!("{sign}{:indent$}{content}", "").trim_end());
    };
    if let (Some(Value::String(before)), Some(Value::String(after))) = (before, after)
        && (before.contains('\n') || after.contains('\n'))
    {
        line(' ', 3, &format!("{path}:"));
        let diff = TextDiff::from_lines(before, after);
        for group in diff.grouped_ops(CONTEXT) {
            for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
                let sign = match change.tag() {
                    ChangeTag::Delete => '-',
                    ChangeTag::Insert => '+',
                    ChangeTag::Equal => ' ',
                };
                line(sign, 5, change.value().trim_end_matches('\n'));
            }
        }
        return;
    }
    for (sign, value) in [('-', before), ('+', after)] {
        let Some(value) = value else { continue };
        let inline = value.to_string();
        if !path.is_empty() && inline.chars().count() <= MAX_INLINE {
            line(sign, 3, &format!("{path}: {inline}"));
            continue;
        }
        let mut indent = 3;
        if !path.is_empty() {
            line(sign, 3, &format!("{path}:"));
            indent = 5;
        }
        let yaml = serde_saphyr::to_string(value).unwrap_or(inline);
        yaml.lines().for_each(|part| line(sign, indent, part));
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
    use proto::gitops::{CommitInfo, ObjectId};
    use serde_json::json;

    use super::*;

    fn field(path: &str, before: Option<Value>, after: Option<Value>) -> FieldDiff {
        FieldDiff { path: path.to_owned(), before, after }
    }

    fn object(action: DiffAction, name: &str, fields: Vec<FieldDiff>) -> DiffLine {
        let object = ObjectId {
            kind: "ConfigMap".to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            ..ObjectId::default()
        };
        let file = if action == DiffAction::Delete { String::new() } else { "app.yaml:3".to_owned() };
        DiffLine::Object(ObjectDiff { action, object, file, note: String::new(), fields })
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

    fn example() -> Vec<DiffLine> {
        let text = |middle: &str| json!(format!("1\n2\n3\n4\n{middle}\n6\n7\n8\n"));
        let long = json!({"name": "web", "image": "nginx", "args": ["a".repeat(60), "b".repeat(60)]});
        let fields = vec![
            field("data.key", Some(json!("one")), Some(json!("two"))),
            field("data.conf", Some(text("5")), Some(text("five\u{1b}[2J"))),
            field("spec.containers[name=web]", None, Some(long)),
            field("spec.replicas", Some(json!(2)), None),
        ];
        let whole = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}});
        vec![
            object(DiffAction::Change, "a", fields),
            object(DiffAction::Create, "b", vec![field("", None, Some(whole))]),
            object(DiffAction::Delete, "c", Vec::new()),
        ]
    }

    #[test]
    fn diff_is_shown_like_a_patch() {
        let diff = Diff::parse(&response(&example(), true)).unwrap();
        let expected = "\
~ change ConfigMap shop/a (app.yaml:3)
-   data.key: \"one\"
+   data.key: \"two\"
    data.conf:
      3
      4
-     5
+     five?[2J
      6
      7
+   spec.containers[name=web]:
+     args:
+     - aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
+     - bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
+     image: nginx
+     name: web
-   spec.replicas: 2
+ create ConfigMap shop/b (app.yaml:3)
+   apiVersion: v1
+   data:
+     a: b
+   kind: ConfigMap
- delete ConfigMap shop/c
1 to create, 1 to change, 1 to delete, 4 unchanged (branch main, commit cccccccccccc)
";
        assert_eq!(diff.to_string(), expected);
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
    }

    #[test]
    fn exit_code_says_whether_a_sync_changes_anything_or_fails() {
        let code = |lines: &[DiffLine]| Diff::parse(&response(lines, true)).unwrap().exit_code();
        let error = ObjectError { object: None, file: "a.yaml:1".to_owned(), message: "no".to_owned() };
        assert_eq!(code(&[]), 0);
        assert_eq!(code(&[object(DiffAction::Keep, "a", Vec::new())]), 0);
        assert_eq!(code(&[object(DiffAction::Delete, "a", Vec::new())]), 1);
        assert_eq!(code(&[DiffLine::Error(error), object(DiffAction::Delete, "a", Vec::new())]), 2);
        let cut = Diff::parse(&response(&example(), false)).unwrap_err();
        assert!(matches!(cut, DiffError::Truncated), "{cut}");
    }

    #[test]
    fn comment_cannot_be_broken_out_of() {
        let fields = vec![field("data.a", Some(json!("x")), Some(json!("```\n@all <b>\n````")))];
        let diff = Diff::parse(&response(&[object(DiffAction::Change, "a", fields)], true)).unwrap();
        let markdown = diff.to_markdown();
        assert!(markdown.contains("\n`````diff\n") && markdown.ends_with("\n`````\n"), "{markdown}");

        let value = "v".repeat(MAX_MARKDOWN / 2);
        let long = |name: &str| object(DiffAction::Create, name, vec![field("a", None, Some(json!(value)))]);
        let diff = Diff::parse(&response(&[long("a"), long("b"), long("c")], true)).unwrap();
        let markdown = diff.to_markdown();
        assert!(markdown.len() < MAX_MARKDOWN + 1000 && markdown.contains("2 more are not shown"));
        assert!(markdown.starts_with("**3 to create, 4 unchanged"), "{}", &markdown[..80]);
    }

    #[test]
    fn reference_and_notes_mention_nobody_in_a_comment() {
        let hostile = "branch **a** ``[x](http://h) @all <img src=x> #1\n\u{202e}";
        let notes = vec![format!("{hostile} is skipped")];
        let commit = Some(CommitInfo { id: "c".repeat(40), ..CommitInfo::default() });
        let summary = DiffSummary { reference: hostile.to_owned(), commit, notes, ..DiffSummary::default() };
        let diff = Diff { summary, ..Diff::default() };
        let shown = "branch **a** ``[x](http://h) @all <img src=x> #1??";
        assert_eq!(
            diff.to_markdown(),
            format!("**no objects (``` {shown}, commit cccccccccccc ```)**\n\n``` {shown} is skipped ```\n")
        );
        assert!(diff.to_string().contains(&format!("({shown}, commit cccccccccccc)")), "{diff}");
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
