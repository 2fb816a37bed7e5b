//! The verb of a request, by its path.

use crate::{
    ServiceName, Verb,
    gitops::{PROJECTS_PATH, ProjectPath},
};

impl Verb {
    /// Returns the verb of a request to a service with this path, which may have a query. The method is no part of it: a service refuses
    /// the wrong method.
    pub fn of_request(service: &ServiceName, path: &str) -> Self {
        match service.verbs() {
            [only] => *only,
            _ => of_gitops(path),
        }
    }
}

/// Returns the verb of a request to the service `gitops`: `/v1/projects`, `/v1/projects/<id>` or `/v1/projects/<id>/<command>`.
///
/// A path that this version does not know needs the greatest right, because a newer agentk may do anything then.
fn of_gitops(path: &str) -> Verb {
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    if path == PROJECTS_PATH {
        return Verb::Read;
    }
    match ProjectPath::parse(path).map(|path| path.command) {
        Some(None | Some("diff")) => Verb::Read,
        Some(Some("sync")) => Verb::Sync,
        Some(Some("suspend" | "resume")) => Verb::Suspend,
        Some(Some(_)) | None => Verb::Approve,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_of_gitops_has_the_verb_of_what_it_does() {
        for (path, expected) in [
            ("/v1/projects", Verb::Read),
            ("/v1/projects/", Verb::Read),
            ("/v1/projects/shop", Verb::Read),
            ("/v1/projects/shop?command=/approve", Verb::Read),
            ("/v1/projects/shop/diff", Verb::Read),
            ("/v1/projects/shop/diff?ref=main", Verb::Read),
            ("/v1/projects/shop/sync", Verb::Sync),
            ("/v1/projects/shop%2Fweb/sync?a", Verb::Sync),
            ("/v1/projects/shop/suspend", Verb::Suspend),
            ("/v1/projects/shop/resume", Verb::Suspend),
            ("/v1/projects/shop/approve", Verb::Approve),
            ("/v1/projects/shop/approve?plan=1", Verb::Approve),
            ("/v1/projects/shop/recover", Verb::Approve),
            ("/v1/projects/shop/prune", Verb::Approve),
            // agentk knows none of these. A newer one may.
            ("/v1/projects/shop/", Verb::Approve),
            ("/v1/projects/shop/destroy", Verb::Approve),
            ("/v1/projects/shop/diff/", Verb::Approve),
            ("/v1/projects/shop/d%69ff", Verb::Approve),
            ("/v1/projects//diff/approve", Verb::Approve),
            ("/v1/projectsX/shop", Verb::Approve),
            ("/v2/projects/shop/approve", Verb::Approve),
            ("/", Verb::Approve),
        ] {
            assert_eq!(Verb::of_request(&"gitops".parse().unwrap(), path), expected, "{path}");
        }
    }

    #[test]
    fn other_services_have_one_verb() {
        for (service, expected) in [
            ("alerts", Verb::Read),
            ("audit", Verb::Read),
            ("events", Verb::Read),
            ("graph", Verb::Read),
            ("kubernetes", Verb::Use),
            ("prometheus", Verb::Use),
            ("prometheus.thanos", Verb::Use),
            ("provision", Verb::Use),
            ("hello", Verb::Use),
        ] {
            let service = service.parse().unwrap();
            assert_eq!(Verb::of_request(&service, "/v1/projects/shop/approve"), expected, "{service}");
        }
    }
}
