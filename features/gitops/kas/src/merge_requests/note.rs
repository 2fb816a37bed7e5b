//! The text of a note: one section for each agent and each of its projects.
//!
//! The sections are found again by lines that begin with [`BEGIN`] and [`END`]. The texts of others begin no line of a section, so that none of
//! them can look like such a line.

use std::collections::BTreeMap;

use manifest_diff::{code_span, printable, short_commit};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use proto::{AgentId, AgentName};

/// The first line of a note of kas.
pub(super) const MARKER: &str = "<!-- kas-preview -->";
const BEGIN: &str = "<!-- kas-preview section ";
const END: &str = "<!-- kas-preview end -->";
const TITLE: &str = "Changes that a sync of the source branch would make in the cluster:";
/// The most bytes of the sections of others in a note. GitLab accepts 1,000,000 characters.
const MAX_OTHERS: usize = 800_000;

/// The project of an agent that a section is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct SectionSubject<'a> {
    pub(super) agent: (AgentId, &'a AgentName),
    /// The name among the projects of the agent.
    pub(super) project: &'a str,
    pub(super) commit: &'a str,
}

/// The part of a note about one project of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoteSection {
    /// Its first line.
    begin: String,
    text: String,
    /// It is needed only if the note had another text before.
    is_quiet: bool,
}

impl SectionSubject<'_> {
    /// Returns the section with a diff, or with the news that there is none any more.
    pub(super) fn diff(&self, comment: &str, is_without_changes: bool) -> NoteSection {
        let news = if is_without_changes { "No change.\n\n" } else { "" };
        self.section(&format!("{news}{comment}"), is_without_changes)
    }

    /// Returns the section with the reason why there is no diff.
    pub(super) fn error(&self, error: &str) -> NoteSection {
        self.section(&format!("There is no diff: {}\n", code_span(&printable(error))), false)
    }

    fn section(&self, text: &str, is_quiet: bool) -> NoteSection {
        let Self { agent: (id, name), project, commit } = *self;
        let begin = format!("{BEGIN}{id} {} -->", utf8_percent_encode(project, NON_ALPHANUMERIC));
        let code = |text: &str| code_span(&printable(text));
        let [name, project, commit] = [code(name.as_str()), code(project), code(&short_commit(commit))];
        NoteSection { begin, text: format!("**{name}, {project} at {commit}**\n\n{text}"), is_quiet }
    }

    /// Returns the command that prints the whole diff.
    pub(super) fn command(&self) -> String {
        let Self { agent: (id, _), project, commit } = *self;
        format!("kas gitops diff --agent {id} {project} --ref {commit}")
    }
}

/// Returns the text of a note with this section in the place of the one before it, or `None` if the note needs no change.
pub(super) fn replace_section(note: Option<&str>, section: &NoteSection) -> Option<String> {
    let mut sections = note.map(parse).unwrap_or_default();
    let before = sections.remove(&section.begin);
    if section.is_quiet && before.is_none() {
        return None;
    }
    while sections.iter().map(|(begin, text)| begin.len() + text.len()).sum::<usize>() > MAX_OTHERS {
        sections.pop_last();
    }
    sections.insert(section.begin.clone(), section.text.clone());
    let text = compose(&sections);
    // GitLab removes whitespace at the end.
    (note.map(str::trim_end) != Some(&*text)).then_some(text)
}

fn compose(sections: &BTreeMap<String, String>) -> String {
    let sections = sections.iter().map(|(begin, text)| format!("\n\n{begin}\n{}\n\n{END}", text.trim_end()));
    format!("{MARKER}\n{TITLE}{}", sections.collect::<String>())
}

/// Returns the sections of a note by their first lines. A maintainer may have edited the note: text outside of sections is left out.
fn parse(note: &str) -> BTreeMap<String, String> {
    let (mut sections, mut open) = (BTreeMap::new(), None);
    for line in note.lines() {
        open = match open {
            Some((begin, text)) if line == END => {
                sections.insert(begin, text);
                None
            }
            Some((begin, text)) => Some((begin, text + line + "\n")),
            None => line.starts_with(BEGIN).then(|| (line.to_owned(), String::new())),
        };
    }
    sections
}

#[cfg(test)]
mod tests {
    use manifest_diff::DiffComment;
    use proto::gitops::{DiffLine, DiffSummary, ObjectError};

    use super::*;

    fn subject<'a>(agent: &'a (AgentId, AgentName), project: &'a str) -> SectionSubject<'a> {
        SectionSubject { agent: (agent.0, &agent.1), project, commit: "1bde63031724aaaa" }
    }

    fn agent(id: u64, name: &str) -> (AgentId, AgentName) {
        (AgentId(id), name.parse().unwrap())
    }

    #[test]
    fn note_has_a_section_for_each_project_of_an_agent() {
        let (prod, staging) = (agent(7, "prod"), agent(10, "staging"));
        let first = subject(&prod, "group/shop").diff("**1 to change**\n", false);
        let note = replace_section(None, &first).unwrap();
        let expected = "\
<!-- kas-preview -->
Changes that a sync of the source branch would make in the cluster:

<!-- kas-preview section 7 group%2Fshop -->
**`prod`, `group/shop` at `1bde63031724`**

**1 to change**

<!-- kas-preview end -->";
        assert_eq!(note, expected);
        assert_eq!(replace_section(Some(&note), &first), None, "it is written already");
        assert_eq!(replace_section(Some(&format!("{note}\n")), &first), None);

        let second = subject(&staging, "group/shop").error("values.yaml is missing");
        let both = replace_section(Some(&note), &second).unwrap();
        assert!(
            both.contains("**1 to change**") && both.contains("There is no diff: `values.yaml is missing`"),
            "{both}"
        );
        let newer = SectionSubject { commit: "2222", ..subject(&prod, "group/shop") }
            .diff("**2 to change**\n", false);
        let both = replace_section(Some(&both), &newer).unwrap();
        assert!(both.contains("**2 to change**") && !both.contains("**1 to change**"), "{both}");
        assert!(both.contains("values.yaml is missing"), "{both}");
        let other = subject(&prod, "blog").diff("", false);
        assert_eq!(parse(&replace_section(Some(&both), &other).unwrap()).len(), 3);
    }

    #[test]
    fn diff_that_is_gone_is_said_where_there_was_one() {
        let prod = agent(7, "prod");
        let quiet = subject(&prod, "shop").diff("**3 unchanged**\n", true);
        assert_eq!(replace_section(None, &quiet), None);
        let other = replace_section(None, &subject(&prod, "blog").diff("x", false)).unwrap();
        assert_eq!(replace_section(Some(&other), &quiet), None, "the note has nothing about the project");
        let before =
            replace_section(Some(&other), &subject(&prod, "shop").diff("**9 to delete**", false)).unwrap();
        let after = replace_section(Some(&before), &quiet).unwrap();
        assert!(after.contains("No change.\n\n**3 unchanged**") && !after.contains("to delete"), "{after}");
    }

    #[test]
    fn edited_note_keeps_nothing_but_whole_sections() {
        let prod = agent(7, "prod");
        let section = subject(&prod, "shop").diff("x", false);
        let expected = replace_section(None, &section);
        for note in ["", MARKER, "@all\n/merge", &format!("{MARKER}\n{BEGIN}9 a -->\n/merge"), END] {
            assert_eq!(replace_section(Some(note), &section), expected, "{note:?}");
        }
        let huge = format!("{BEGIN}9 a -->\n{}\n{END}\n", "x".repeat(MAX_OTHERS));
        assert_eq!(replace_section(Some(&huge), &section), expected);
    }

    /// Test 122 of the attack list: names and messages that look like parts of a note, or like commands.
    #[test]
    fn texts_of_others_begin_no_line() {
        let prod = agent(7, "prod");
        for hostile in
            ["a\n/merge", END, "a -->\n/merge <!--", "<!-- kas-preview section 9 x -->", "`@all`", "--> @all"]
        {
            let text = format!("x\n{hostile}\n/close\n{END}\ny");
            let (mut comment, error) = (
                DiffComment::new(1000),
                ObjectError { object: None, file: text.clone(), message: text.clone() },
            );
            comment.push(&DiffLine::Error(error));
            let about = SectionSubject { project: &text, ..subject(&prod, "") };
            let comment = comment.finish(&DiffSummary::default(), &about.command());
            for section in [about.error(&text), about.diff(&comment, false)] {
                let note = replace_section(None, &section).unwrap();
                assert!(note.lines().all(|line| !line.starts_with('/')), "{note}");
                assert_eq!(note.lines().filter(|line| line.starts_with("<!--")).count(), 3, "{note}");
                assert_eq!(parse(&note).len(), 1, "{note}");
                assert!(
                    note.lines()
                        .filter(|line| line.contains("-->"))
                        .all(|line| line.starts_with("<!--") || line.contains('`')),
                    "{note}"
                );
            }
        }
    }
}
