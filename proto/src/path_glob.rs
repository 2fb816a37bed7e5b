//! Globs for names that have parts, such as the paths of files and the names of environments.

use globset::{Error, GlobBuilder, GlobMatcher};

/// Compiles a glob as GitLab's kas reads those of manifests: `*` and `?` match no `/`, and `**` matches any number of parts.
///
/// # Errors
///
/// The text is no glob.
pub fn path_glob(text: &str) -> Result<GlobMatcher, Error> {
    let built = GlobBuilder::new(text).literal_separator(true).empty_alternates(true).build();
    built.map(|glob| glob.compile_matcher())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_matches_within_one_part_and_two_across_parts() {
        for (glob, name, expected) in [
            ("production/us-*", "production/us-1", true),
            ("production/us-*", "production/us-1/a", false),
            ("production/*", "production", false),
            ("production/**", "production/us-1/a", true),
            ("**/us-1", "us-1", true),
            ("*", "production/us-1", false),
            ("review-{a,b}", "review-b", true),
            ("review-?", "review-/", false),
        ] {
            assert_eq!(path_glob(glob).unwrap().is_match(name), expected, "{glob} {name}");
        }
        assert!(path_glob("production/[").is_err());
    }
}
