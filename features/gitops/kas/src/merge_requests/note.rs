//! The text of a note: one section for each agent and each of its projects.
//!
//! kas writes a section of another agent again only with a valid MAC: GitLab lets maintainers edit notes of others. The sections are found by
//! lines that begin with [`BEGIN`] and [`END`]. The texts of others begin no line of a section, so that none of them can look like such a line.

use std::{collections::BTreeMap, fmt::Write as _};

use manifest_diff::{code_span, printable, short_commit};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use proto::{AgentId, AgentName};

use super::mac::SectionAuthenticator;

/// The first line of a note of kas.
pub(super) const MARKER: &str = "<!-- kas-preview -->";
const BEGIN: &str = "<!-- kas-preview section ";
const END: &str = "<!-- kas-preview end -->";
const TITLE: &str = "Changes that a sync of the source branch would make in the cluster:";
/// The line before a section of another commit than that of the newest section.
const OTHER_COMMIT: &str = "The next section is about another commit:\n\n";
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
    /// The agent and the project.
    subject: String,
    commit: String,
    text: String,
    /// It is needed only if the note had another text before.
    is_quiet: bool,
}

/// A section of a note as it was read. It may be forged.
#[derive(Debug)]
struct WrittenSection {
    commit: String,
    mac: String,
    text: String,
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
        let subject = format!("{id} {}", utf8_percent_encode(project, NON_ALPHANUMERIC));
        let of = commit.to_owned();
        let code = |text: &str| code_span(&printable(text));
        let [name, project, commit] = [code(name.as_str()), code(project), code(&short_commit(commit))];
        let text = format!("**{name}, {project} at {commit}**\n\n{}", text.trim_end());
        NoteSection { subject, commit: of, text, is_quiet }
    }

    /// Returns the command that prints the whole diff.
    pub(super) fn command(&self) -> String {
        let Self { agent: (id, _), project, commit } = *self;
        // kas would read the name as a flag.
        let end_of_flags = if project.starts_with('-') { "-- " } else { "" };
        format!("kas gitops diff --agent {id} --ref {commit} {end_of_flags}{}", shell_word(project))
    }
}

/// Returns a text as one word for a shell.
fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns the text of a note with this section in the place of the one before it, or `None` if the note needs no change.
pub(super) fn replace_section(
    note: Option<&str>,
    section: &NoteSection,
    authenticator: &SectionAuthenticator,
) -> Option<String> {
    let mut sections = note.map(parse).unwrap_or_default();
    let before = sections.remove(&section.subject);
    if section.is_quiet && before.is_none() {
        return None;
    }
    sections.retain(|subject, WrittenSection { commit, mac, text }| {
        authenticator.verify(&head(subject, commit), text, mac)
    });
    let mut left_out = 0;
    while sections.iter().map(|(subject, written)| subject.len() + written.text.len()).sum::<usize>()
        > MAX_OTHERS
    {
        sections.pop_last();
        left_out += 1;
    }
    let (commit, text) = (section.commit.clone(), section.text.clone());
    let mac = authenticator.sign(&head(&section.subject, &commit), &text);
    sections.insert(section.subject.clone(), WrittenSection { commit, mac, text });
    let text = compose(&sections, &section.commit, left_out);
    // GitLab removes whitespace at the end.
    (note.map(str::trim_end) != Some(&*text)).then_some(text)
}

/// Returns the part of the first line of a section that its MAC covers.
fn head(subject: &str, commit: &str) -> String {
    format!("{subject} {commit}")
}

fn compose(sections: &BTreeMap<String, WrittenSection>, newest: &str, left_out: u32) -> String {
    let mut note = format!("{MARKER}\n{TITLE}");
    // Writing to a string does not fail.
    for (subject, WrittenSection { commit, mac, text }) in sections {
        let other = if commit == newest { "" } else { OTHER_COMMIT };
        let _ = write!(note, "\n\n{other}{BEGIN}{subject} {commit} {mac} -->\n{text}\n\n{END}");
    }
    let _ = match left_out {
        0 => Ok(()),
        1 => write!(note, "\n\n1 section has no place here."),
        _ => write!(note, "\n\n{left_out} sections have no place here."),
    };
    note
}

/// Returns the sections of a note by their subjects. A maintainer may have edited the note: text outside of sections is left out.
fn parse(note: &str) -> BTreeMap<String, WrittenSection> {
    let (mut sections, mut open) = (BTreeMap::new(), None);
    for line in note.lines() {
        open = match open {
            Some((subject, WrittenSection { commit, mac, text })) if line == END => {
                let text = text.trim_end().to_owned();
                sections.insert(subject, WrittenSection { commit, mac, text });
                None
            }
            Some((subject, WrittenSection { commit, mac, text })) => {
                Some((subject, WrittenSection { commit, mac, text: text + line + "\n" }))
            }
            None => parse_begin(line),
        };
    }
    sections
}

/// Returns the subject and the section that begin with this line, if one does.
fn parse_begin(line: &str) -> Option<(String, WrittenSection)> {
    let (head, mac) = line.strip_prefix(BEGIN)?.strip_suffix(" -->")?.rsplit_once(' ')?;
    let (subject, commit) = head.rsplit_once(' ')?;
    let (commit, mac) = (commit.to_owned(), mac.to_owned());
    Some((subject.to_owned(), WrittenSection { commit, mac, text: String::new() }))
}

#[cfg(test)]
mod tests {
    use gitops_wire::{NoteKey, NotePlace};
    use manifest_diff::DiffComment;
    use proto::gitops::{DiffLine, DiffSummary, ObjectError};

    use super::*;

    fn subject<'a>(agent: &'a (AgentId, AgentName), project: &'a str) -> SectionSubject<'a> {
        SectionSubject { agent: (agent.0, &agent.1), project, commit: "1bde63031724aaaa" }
    }

    fn authenticator() -> SectionAuthenticator {
        SectionAuthenticator::new(NoteKey::new([1; 32]), NotePlace { project: 7, merge_request: 12 })
    }

    fn replace(note: Option<&str>, section: &NoteSection) -> Option<String> {
        replace_section(note, section, &authenticator())
    }

    fn agent(id: u64, name: &str) -> (AgentId, AgentName) {
        (AgentId(id), name.parse().unwrap())
    }

    #[test]
    fn note_has_a_section_for_each_project_of_an_agent() {
        let (prod, staging) = (agent(7, "prod"), agent(10, "staging"));
        let first = subject(&prod, "group/shop").diff("**1 to change**\n", false);
        let note = replace(None, &first).unwrap();
        let text = "**`prod`, `group/shop` at `1bde63031724`**\n\n**1 to change**";
        let mac = authenticator().sign("7 group%2Fshop 1bde63031724aaaa", text);
        let expected = format!(
            "\
<!-- kas-preview -->
Changes that a sync of the source branch would make in the cluster:

<!-- kas-preview section 7 group%2Fshop 1bde63031724aaaa {mac} -->
{text}

<!-- kas-preview end -->"
        );
        assert_eq!(note, expected);
        assert_eq!(replace(Some(&note), &first), None, "it is written already");
        assert_eq!(replace(Some(&format!("{note}\n")), &first), None);

        let second = subject(&staging, "group/shop").error("values.yaml is missing");
        let both = replace(Some(&note), &second).unwrap();
        assert!(
            both.contains("**1 to change**") && both.contains("There is no diff: `values.yaml is missing`"),
            "{both}"
        );
        let newer = SectionSubject { commit: "2222", ..subject(&prod, "group/shop") }
            .diff("**2 to change**\n", false);
        let both = replace(Some(&both), &newer).unwrap();
        assert!(both.contains("**2 to change**") && !both.contains("**1 to change**"), "{both}");
        let begin = format!("\n\n{OTHER_COMMIT}{BEGIN}10 group%2Fshop 1bde63031724aaaa ");
        assert!(both.contains("values.yaml is missing") && both.contains(&begin), "{both}");
        assert_eq!(both.matches(OTHER_COMMIT.trim_end()).count(), 1, "{both}");
        let other = subject(&prod, "blog").diff("", false);
        assert_eq!(parse(&replace(Some(&both), &other).unwrap()).len(), 3);
    }

    #[test]
    fn diff_that_is_gone_is_said_where_there_was_one() {
        let prod = agent(7, "prod");
        let quiet = subject(&prod, "shop").diff("**3 unchanged**\n", true);
        assert_eq!(replace(None, &quiet), None);
        let other = replace(None, &subject(&prod, "blog").diff("x", false)).unwrap();
        assert_eq!(replace(Some(&other), &quiet), None, "the note has nothing about the project");
        let before = replace(Some(&other), &subject(&prod, "shop").diff("**9 to delete**", false)).unwrap();
        let after = replace(Some(&before), &quiet).unwrap();
        assert!(after.contains("No change.\n\n**3 unchanged**") && !after.contains("to delete"), "{after}");
    }

    #[test]
    fn edited_note_keeps_nothing_but_whole_sections() {
        let prod = agent(7, "prod");
        let section = subject(&prod, "shop").diff("x", false);
        let expected = replace(None, &section);
        for note in ["", MARKER, "@all\n/merge", &format!("{MARKER}\n{BEGIN}9 a -->\n/merge"), END] {
            assert_eq!(replace(Some(note), &section), expected, "{note:?}");
        }
        let staging = agent(9, "staging");
        let huge = replace(None, &subject(&staging, "a").diff(&"x".repeat(MAX_OTHERS), false)).unwrap();
        let cut = replace(Some(&huge), &section).unwrap();
        assert_eq!(cut, format!("{}\n\n1 section has no place here.", expected.unwrap()));
    }

    #[test]
    fn section_that_kas_has_not_written_is_left_out() {
        let (prod, staging) = (agent(7, "prod"), agent(9, "staging"));
        let section = subject(&prod, "shop").diff("x", false);
        let alone = replace(None, &section).unwrap();
        let other = replace(None, &subject(&staging, "shop").diff("**1 to change**", false)).unwrap();
        let both = replace(Some(&other), &section).unwrap();
        assert!(both.contains("**1 to change**"), "{both}");
        assert_eq!(replace(Some(&both.replace('\n', "\r\n")), &section), Some(both.clone()));
        let forged = [
            other.replace("**1 to change**", "/merge\n@all"),
            other.replace("**1 to change**", "**1 to change**\n/merge @all"),
            other.replace("shop 1bde", "shop 2222"),
            format!("{MARKER}\n{BEGIN}9 a bbbb 00 -->\n/merge\n@all\n{END}"),
        ];
        for forged in forged {
            assert_eq!(replace(Some(&forged), &section).as_ref(), Some(&alone), "{forged}");
        }
        let place = NotePlace { project: 7, merge_request: 13 };
        let elsewhere = SectionAuthenticator::new(NoteKey::new([1; 32]), place);
        let copied = replace_section(Some(&other), &section, &elsewhere).unwrap();
        assert!(!copied.contains("**1 to change**"), "{copied}");
    }

    #[test]
    fn command_is_one_word_for_each_argument() {
        let prod = agent(7, "prod");
        for (project, words) in [
            ("group/shop", "group/shop"),
            ("a; b", "'a; b'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
            ("--agent=8", "-- '--agent=8'"),
        ] {
            let expected = format!("kas gitops diff --agent 7 --ref 1bde63031724aaaa {words}");
            assert_eq!(subject(&prod, project).command(), expected);
        }
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
                let note = replace(None, &section).unwrap();
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
