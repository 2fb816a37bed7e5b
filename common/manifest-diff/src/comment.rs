//! A diff as a comment of a merge request, in the Markdown of GitLab.

use std::fmt::Write as _;

use proto::gitops::{DiffLine, DiffSummary, ObjectDiff};

use super::{
    lines::{application_lines, error_line, field_lines, head_line},
    printable::printable,
    sentence::sentence,
};

/// The longest text of a field whose differences are in a comment, in bytes.
const MAX_TEXT: usize = 64 << 10;

/// Collects the lines of a diff for a comment, as many as it may have.
///
/// Texts of others are in code only: GitLab finds no mention, reference or link there. They begin no line, because GitLab takes a line
/// that begins with `/` for a command of the author of the comment, also in a block of code whose fence has more than three backticks.
#[derive(Debug)]
pub struct DiffComment {
    blocks: String,
    /// The objects, errors, Applications and notes that have no place.
    left_out: usize,
    errors: usize,
    max_bytes: usize,
    /// An object had no place: the text of further ones is not made.
    is_full: bool,
}

impl DiffComment {
    /// Begins a comment whose blocks have at most so many bytes.
    pub fn new(max_bytes: usize) -> Self {
        Self { blocks: String::new(), left_out: 0, errors: 0, max_bytes, is_full: false }
    }

    /// Adds a line of a diff. Objects and errors without a place are counted.
    pub fn push(&mut self, line: &DiffLine) {
        match line {
            DiffLine::Object(_) if self.is_full => self.left_out += 1,
            DiffLine::Object(object) => self.is_full = !self.push_block(&object_block(object)),
            DiffLine::Error(error) => {
                self.errors += 1;
                self.push_block(&item(&error_line(error)));
            }
            DiffLine::End(_) => {}
        }
    }

    /// Adds a block. Returns false if it has no place.
    fn push_block(&mut self, block: &str) -> bool {
        let has_place = self.blocks.len() + block.len() <= self.max_bytes;
        if has_place {
            self.blocks += block;
        } else {
            self.left_out += 1;
        }
        has_place
    }

    /// Returns whether no object would change, and there is no error.
    pub fn is_without_changes(&self, summary: &DiffSummary) -> bool {
        self.errors == 0 && !summary.has_changes()
    }

    /// Returns the comment. `command` prints all of the diff.
    pub fn finish(mut self, summary: &DiffSummary, command: &str) -> String {
        for application in &summary.applications {
            self.push_block(&item(&application_lines(application).join("; ")));
        }
        for note in &summary.notes {
            self.push_block(&item(&printable(note)));
        }
        let mut comment = format!("**{}**\n{}", sentence(summary, self.errors, code_span), self.blocks);
        if self.left_out > 0 {
            let (left_out, command) = (self.left_out, code_span(&printable(command)));
            // Writing to a string does not fail.
            let _ = write!(
                comment,
                "\n{left_out} more are not shown, because the comment would be too long: {command} prints all.\n"
            );
        }
        comment
    }
}

/// Returns the block of an object: its fields unfold.
fn object_block(diff: &ObjectDiff) -> String {
    let (head, fields) = (head_line(diff), field_lines(diff, MAX_TEXT));
    if fields.is_empty() {
        return item(&head);
    }
    let fence = "`".repeat(longest_fence(&fields).max(2) + 1);
    let head = escape_html(&head);
    format!(
        "\n<details><summary><code>{head}</code></summary>\n\n{fence}diff\n{fields}{fence}\n\n</details>\n"
    )
}

/// Returns an item of a list with a text of one line.
fn item(text: &str) -> String {
    format!("\n* {}\n", code_span(text))
}

/// Returns a text of one line as code, where it mentions nobody and has no links.
pub fn code_span(text: &str) -> String {
    // Two backticks without a text between them would begin a span that ends somewhere else.
    let text = if text.is_empty() { " " } else { text };
    let fence = "`".repeat(longest_fence(text) + 1);
    // A space at both ends is not shown, and separates a backtick from the fence.
    let space = if fence.len() > 1 { " " } else { "" };
    format!("{fence}{space}{text}{space}{fence}")
}

/// Returns the length of the longest run of backticks.
fn longest_fence(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or_default()
}

/// Replaces the characters that have a meaning in HTML.
fn escape_html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use proto::gitops::{DiffAction, ObjectError};
    use serde_json::json;

    use super::*;
    use crate::examples::{field, object, summary};

    const COMMAND: &str = "kas gitops diff --agent 7 shop";

    /// Returns the comment about lines, whose number the summary has.
    fn comment(lines: &[DiffLine]) -> String {
        let (mut comment, mut summary) = (DiffComment::new(60_000), summary("branch main"));
        for line in lines {
            comment.push(line);
            summary.count(line);
        }
        comment.finish(&summary, COMMAND)
    }

    #[test]
    fn objects_unfold_and_those_without_fields_are_lines() {
        let fields = vec![field("spec.replicas", Some(json!(2)), Some(json!(3)))];
        let text = comment(&[
            DiffLine::Object(object(DiffAction::Change, "web", fields)),
            DiffLine::Object(object(DiffAction::Delete, "old", Vec::new())),
            DiffLine::Error(ObjectError {
                object: None,
                file: "a.yaml:1".to_owned(),
                message: "no YAML".to_owned(),
            }),
        ]);
        let expected = "\
**1 to change, 1 to delete (`branch main, commit cccccccccccc`); 1 error, which stops a sync**

<details><summary><code>~ change ConfigMap shop/web (app.yaml:3)</code></summary>

```diff
-   spec.replicas: 2
+   spec.replicas: 3
```

</details>

* `- delete ConfigMap shop/old`

* `! a.yaml:1: no YAML`
";
        assert_eq!(text, expected);
    }

    /// The texts with which somebody who writes manifests could act as the author of the comment.
    const HOSTILE: [&str; 12] = [
        "/merge",
        "a\n/merge\nb",
        "a\r\n/approve\r\n",
        "```\n/close\n```\n@all",
        "`````\n/assign @root\n`````",
        "</code></summary></details>\n\n/lock @all",
        "<img src=x onerror=alert(1)>",
        "[x](javascript:alert(1)) ![y](http://h/y.png) #1 !2 @all",
        "<!-- kas-preview end -->\n<!-- kas-preview -->",
        "$`\\href{javascript:alert(1)}{x}`$ ::include{file=/etc/passwd}",
        "\u{202e}evil\u{2028}/merge\u{85}/merge",
        "`",
    ];

    /// Checks that a hostile text is in code only: in a block whose fence no line of it ends, or in a span on one line.
    fn assert_harmless(markdown: &str, hostile: &str) {
        let mut fence: Option<&str> = None;
        for line in markdown.split('\n') {
            assert!(!line.starts_with('/'), "{hostile:?} is a command: {markdown}");
            let backticks = &line[..line.len() - line.trim_start_matches('`').len()];
            match fence {
                Some(open) if line == open => fence = None,
                Some(_) => assert!(line.is_empty() || line.starts_with(['+', '-', ' ']), "{line}"),
                None if backticks.len() > 2 && line.ends_with("`diff") => fence = Some(backticks),
                None => assert_line_is_harmless(line, hostile),
            }
        }
        assert_eq!(fence, None, "{markdown}");
    }

    fn assert_line_is_harmless(line: &str, hostile: &str) {
        if let Some(head) = line.strip_prefix("<details><summary><code>") {
            let head = head.strip_suffix("</code></summary>").unwrap();
            return assert!(!head.contains(['<', '>']), "{hostile:?}: {line}");
        }
        let is_ours = ["", "</details>"].contains(&line)
            || ["**", "* `"].iter().any(|begin| line.starts_with(begin))
            || line.contains("more are not shown");
        let outside = if line == "</details>" { String::new() } else { without_code(line) };
        assert!(is_ours && !outside.contains(['<', '@', '[']), "{hostile:?} leaves its code: {line}");
    }

    /// Returns a line without its spans of code, by the rule of CommonMark.
    fn without_code(line: &str) -> String {
        let (mut rest, mut outside) = (line, String::new());
        while let Some(at) = rest.find('`') {
            outside += &rest[..at];
            let run = rest[at..].len() - rest[at..].trim_start_matches('`').len();
            let (fence, after) = rest[at..].split_at(run);
            let end = (0..after.len()).filter(|end| after.is_char_boundary(*end)).find(|end| {
                let (before, from) = after.split_at(*end);
                from.starts_with(fence) && !before.ends_with('`') && !from[run..].starts_with('`')
            });
            rest = &after[end.expect("the span ends on its line") + run..];
        }
        outside + rest
    }

    #[test]
    fn nothing_leaves_its_code() {
        for hostile in HOSTILE {
            let fields = vec![
                field("data.a", Some(json!("x")), Some(json!(hostile))),
                field(hostile, Some(json!("x\ny")), Some(json!(hostile.repeat(2)))),
                field("", None, Some(json!({hostile: [hostile, {"a": hostile}]}))),
                field("spec", Some(json!(vec![hostile; 40])), None),
            ];
            let named = |fields| {
                let mut diff = object(DiffAction::Change, hostile, fields);
                (diff.file, diff.note) = (hostile.to_owned(), hostile.to_owned());
                (diff.object.kind, diff.object.namespace) = (hostile.to_owned(), hostile.to_owned());
                DiffLine::Object(diff)
            };
            let error = ObjectError { object: None, file: hostile.to_owned(), message: hostile.to_owned() };
            let mut of_all = DiffComment::new(60_000);
            let lines = [named(fields), named(Vec::new()), DiffLine::Error(error)];
            lines.iter().for_each(|line| of_all.push(line));
            let summary = DiffSummary { notes: vec![hostile.to_owned()], ..summary(hostile) };
            assert_harmless(&of_all.finish(&summary, hostile), hostile);

            let mut cut = DiffComment::new(0);
            lines.iter().for_each(|line| cut.push(line));
            assert_harmless(&cut.finish(&summary, hostile), hostile);
        }
    }

    #[test]
    fn empty_code_ends_where_it_begins() {
        assert_eq!([code_span(""), code_span("a"), code_span("`")], ["` `", "`a`", "`` ` ``"]);
    }

    #[test]
    fn long_comment_is_cut_and_names_the_command() {
        let long = |name: &str| {
            let value = json!("v".repeat(30_000));
            DiffLine::Object(object(DiffAction::Create, name, vec![field("a", None, Some(value))]))
        };
        let summary = DiffSummary { create: 3, notes: vec!["n".repeat(60_000)], ..DiffSummary::default() };
        let mut comment = DiffComment::new(60_000);
        [long("a"), long("b"), long("c")].iter().for_each(|line| comment.push(line));
        let text = comment.finish(&summary, COMMAND);
        assert!(text.len() < 61_000 && text.starts_with("**3 to create"), "{}", text.len());
        let end =
            format!("3 more are not shown, because the comment would be too long: `{COMMAND}` prints all.\n");
        assert!(text.ends_with(&end), "{}", &text[text.len() - 200..]);
    }

    #[test]
    fn full_comment_counts_objects_and_shows_short_errors() {
        let long = vec![field("a", None, Some(json!("v".repeat(2000))))];
        let error = ObjectError { object: None, file: String::new(), message: "no YAML".to_owned() };
        let mut comment = DiffComment::new(1000);
        comment.push(&DiffLine::Object(object(DiffAction::Create, "a", long)));
        comment.push(&DiffLine::Object(object(DiffAction::Delete, "b", Vec::new())));
        comment.push(&DiffLine::Error(error));
        let text = comment.finish(&summary("branch main"), COMMAND);
        assert!(text.contains("2 more are not shown") && text.contains("no YAML"), "{text}");
        assert!(!text.contains("shop/b"), "{text}");
    }

    #[test]
    fn huge_text_is_counted() {
        let huge = |line: &str| Some(json!(line.repeat(20_000)));
        let fields = vec![field("data.conf", huge("one\n"), huge("two\n"))];
        let text = comment(&[DiffLine::Object(object(DiffAction::Change, "a", fields))]);
        assert!(text.contains("\n    data.conf: text of 20000 lines changed\n"), "{text}");
    }

    #[test]
    fn diff_without_changes_and_errors_is_known() {
        let (comment, mut counts) = (DiffComment::new(10), summary("branch main"));
        (counts.unchanged, counts.keep) = (4, 1);
        assert!(comment.is_without_changes(&counts));
        counts.delete = 1;
        assert!(!comment.is_without_changes(&counts));
    }
}
