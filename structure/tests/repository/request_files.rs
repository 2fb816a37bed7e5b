//! The lists in `docs/architecture.md` of the files that a request goes through.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{collections::BTreeSet, fs};
use structure::root;

/// The lists, with the number of their files. The numbers may only get smaller.
const LISTS: [(&str, usize); 3] = [("Spine", 20), ("Beside it", 48), ("Through another replica", 12)];

/// Returns the files that a section of the architecture names.
fn files<'a>(text: &'a str, section: &str) -> Vec<&'a str> {
    let (_, section) = text.split_once(&format!("\n### {section}\n")).unwrap();
    let section = section.split("\n##").next().unwrap();
    section.split('`').skip(1).step_by(2).filter(|word| word.ends_with(".rs")).collect()
}

#[test]
fn files_of_a_request_exist_and_do_not_get_more() {
    let text = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let mut all = BTreeSet::new();
    for (section, limit) in LISTS {
        let files = files(&text, section);
        assert!(!files.is_empty() && files.len() <= limit, "{section} has {} files", files.len());
        for file in files {
            assert!(root().join(file).is_file(), "{section}: {file} does not exist");
            assert!(all.insert(file), "{section}: {file} is in two places");
        }
    }
}

/// The spine is a numbered list with a file in each line, in the order of the request.
#[test]
fn spine_has_one_file_in_each_line() {
    let text = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let (_, spine) = text.split_once("\n### Spine\n").unwrap();
    let lines = spine.split("\n###").next().unwrap().lines().filter(|line| !line.is_empty()).skip(1);
    for (index, line) in lines.enumerate() {
        assert!(line.starts_with(&format!("{}. `", index + 1)), "{line}");
        assert_eq!(line.matches(".rs`").count(), 1, "{line}");
    }
}
