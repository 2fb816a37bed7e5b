//! The paths of the service `gitops` about one project.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use super::PROJECTS_PATH;

/// A path about one project: `/v1/projects/<name>` or `/v1/projects/<name>/<command>`.
///
/// kas decides by it what agentk then does, so that both read it here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectPath<'a> {
    /// The name among the projects of the agent, decoded.
    pub project: Cow<'a, str>,
    /// The command, as it is in the path. Everything behind the second `/` belongs to it.
    pub command: Option<&'a str>,
}

impl<'a> ProjectPath<'a> {
    /// Parses a path, which may have a query. Returns `None` if it is not about one project, or the name is no UTF-8.
    pub fn parse(path: &'a str) -> Option<Self> {
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        let rest = path.strip_prefix(PROJECTS_PATH)?.strip_prefix('/')?;
        let (name, command) =
            rest.split_once('/').map_or((rest, None), |(name, command)| (name, Some(command)));
        Some(Self { project: percent_decode_str(name).decode_utf8().ok()?, command })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_decoded_and_the_command_is_not() {
        for (path, expected) in [
            ("/v1/projects/shop", Some(("shop", None))),
            ("/v1/projects/shop?a=/sync", Some(("shop", None))),
            ("/v1/projects/shop%2Fweb/sync?a", Some(("shop/web", Some("sync")))),
            ("/v1/projects/shop%252Fweb/sync", Some(("shop%2Fweb", Some("sync")))),
            ("/v1/projects/shop/web/sync", Some(("shop", Some("web/sync")))),
            ("/v1/projects/shop/s%79nc", Some(("shop", Some("s%79nc")))),
            ("/v1/projects//sync", Some(("", Some("sync")))),
            ("/v1/projects/%FF/sync", None),
            ("/v1/projects", None),
            ("/v1/projectsX/shop", None),
            ("/v2/projects/shop/sync", None),
        ] {
            let parsed = ProjectPath::parse(path);
            let parsed = parsed.as_ref().map(|parsed| (&*parsed.project, parsed.command));
            assert_eq!(parsed, expected, "{path}");
        }
    }
}
