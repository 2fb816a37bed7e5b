//! The directories that have to be rendered.

use std::collections::BTreeSet;

use proto::agent_configuration::gitops::{ManifestPath, ManifestProject, Render};

use crate::RenderError;

/// The names of files that make a directory one for kustomize.
pub const KUSTOMIZATIONS: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];
/// The name of the file that makes a directory one for helm.
pub const CHART: &str = "Chart.yaml";

/// A program that renders manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    /// `kustomize build`.
    Kustomize,
    /// `helm template`.
    Helm,
}

/// A directory that is rendered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Job {
    /// The program.
    pub tool: Tool,
    /// The path of the directory from the root of the repository; empty for the root.
    pub directory: String,
}

/// The directories of a project that are rendered, and the paths whose files are not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The directories to render.
    pub jobs: Vec<Job>,
    /// The paths whose files are manifests as they are.
    pub plain: Vec<ManifestPath>,
}

/// Returns the paths of files on whose existence the plan depends.
pub fn markers(project: &ManifestProject) -> Vec<String> {
    let names: &[&str] = match project.render {
        Render::Plain => &[],
        Render::Auto => &[KUSTOMIZATIONS[0], KUSTOMIZATIONS[1], KUSTOMIZATIONS[2], CHART],
        Render::Kustomize => &KUSTOMIZATIONS,
        Render::Helm => &[CHART],
    };
    let of = |path: &ManifestPath| {
        let directory = directory(path);
        names.iter().map(move |name| join(&directory, name)).collect::<Vec<_>>()
    };
    project.paths.iter().flat_map(of).collect()
}

/// Decides what is rendered. `exists` says whether the commit has a file.
///
/// # Errors
///
/// The project demands a program, and a directory has nothing for it.
pub fn plan(project: &ManifestProject, exists: impl Fn(&str) -> bool) -> Result<Plan, RenderError> {
    let mut jobs = BTreeSet::new();
    let mut plain = Vec::new();
    for path in &project.paths {
        let directory = directory(path);
        let has = |names: &[&str]| names.iter().any(|name| exists(&join(&directory, name)));
        let tool = match project.render {
            Render::Auto | Render::Kustomize if has(&KUSTOMIZATIONS) => Some(Tool::Kustomize),
            Render::Auto | Render::Helm if has(&[CHART]) => Some(Tool::Helm),
            Render::Auto | Render::Plain => None,
            Render::Kustomize => return Err(missing("render: kustomize", &directory, KUSTOMIZATIONS[0])),
            Render::Helm => return Err(missing("render: helm", &directory, CHART)),
        };
        match tool {
            Some(tool) => drop(jobs.insert(Job { tool, directory })),
            None => plain.push(path.clone()),
        }
    }
    Ok(Plan { jobs: jobs.into_iter().collect(), plain })
}

fn missing(setting: &str, directory: &str, name: &str) -> RenderError {
    RenderError::refused(format!(
        "{setting} needs the file {}, which the commit does not have: paths[].glob must begin with the directory, as in \
         prod/**/*.yaml",
        join(directory, name)
    ))
}

/// Returns the directory in front of the first wildcard of a path.
fn directory(path: &ManifestPath) -> String {
    git::literal_prefix(&path.glob).trim_end_matches('/').to_owned()
}

/// Returns whether a path is that of a directory, or below it.
pub fn is_below(path: &str, directory: &str) -> bool {
    directory.is_empty()
        || path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

pub(crate) fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

impl Tool {
    /// Returns the name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kustomize => "kustomize",
            Self::Helm => "helm",
        }
    }

    /// Returns the name of the command.
    pub fn command(self) -> &'static str {
        match self {
            Self::Kustomize => "kustomize build",
            Self::Helm => "helm template",
        }
    }
}

impl Job {
    /// Returns the directory as people read it.
    pub fn place(&self) -> &str {
        if self.directory.is_empty() { "the root of the repository" } else { &self.directory }
    }

    /// Returns the name by which errors of the rendered manifests name their file.
    pub fn file(&self) -> String {
        let directory = if self.directory.is_empty() { "." } else { &self.directory };
        format!("{directory} ({})", self.tool.command())
    }

    /// Returns the last part of the directory.
    pub(crate) fn name(&self) -> &str {
        self.directory.rsplit('/').next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project(render: Render, globs: &[&str]) -> ManifestProject {
        let paths = globs.iter().map(|glob| ManifestPath { glob: (*glob).to_owned() }).collect();
        ManifestProject { render, paths, ..ManifestProject::default() }
    }

    fn shown(project: &ManifestProject, files: &[&str]) -> Result<String, String> {
        let plan = plan(project, |path| files.contains(&path)).map_err(|error| error.to_string())?;
        let jobs = plan.jobs.iter().map(Job::file);
        Ok(jobs.chain(plan.plain.into_iter().map(|path| path.glob)).collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn directory_in_front_of_the_wildcard_decides() {
        let auto = |globs: &[&str], files: &[&str]| shown(&project(Render::Auto, globs), files).unwrap();
        let kustomization = "prod/kustomization.yaml";
        assert_eq!(auto(&["prod/**/*.yaml"], &[kustomization]), "prod (kustomize build)");
        assert_eq!(auto(&["/prod/*"], &["prod/Chart.yaml"]), "prod (helm template)");
        assert_eq!(auto(&["prod/**/*.yaml"], &["prod/deep/Kustomization"]), "prod/**/*.yaml");
        assert_eq!(auto(&["**/*.{yaml,yml,json}"], &["kustomization.yml"]), ". (kustomize build)");
        assert_eq!(
            auto(&["prod/*.yaml", "prod/**/*.yml", "plain/*.yaml"], &[kustomization]),
            "prod (kustomize build), plain/*.yaml"
        );
        assert_eq!(auto(&["prod/*"], &["prod/Chart.yaml", kustomization]), "prod (kustomize build)");
    }

    #[test]
    fn demanded_program_needs_its_file() {
        assert_eq!(shown(&project(Render::Plain, &["prod/*"]), &["prod/Chart.yaml"]).unwrap(), "prod/*");
        let both = ["prod/Chart.yaml", "prod/Kustomization"];
        assert_eq!(shown(&project(Render::Helm, &["prod/*"]), &both).unwrap(), "prod (helm template)");
        let error = shown(&project(Render::Helm, &["prod/*"]), &[]).unwrap_err();
        assert!(error.starts_with("render: helm needs the file prod/Chart.yaml"), "{error}");
        let error = shown(&project(Render::Kustomize, &["*.yaml"]), &["Chart.yaml"]).unwrap_err();
        assert!(error.starts_with("render: kustomize needs the file kustomization.yaml"), "{error}");
    }

    #[test]
    fn markers_are_the_files_that_decide() {
        assert!(markers(&project(Render::Plain, &["prod/*"])).is_empty());
        assert_eq!(markers(&project(Render::Helm, &["prod/*", "*.yaml"])), ["prod/Chart.yaml", "Chart.yaml"]);
        assert_eq!(markers(&project(Render::Auto, &["prod/*"])).len(), 4);
    }
}
