//! The variables of templates, and their values.

use std::{collections::BTreeMap, fmt};

macro_rules! variables {
    ($($(#[$doc:meta])* $variant:ident = $path:literal;)*) => {
        /// A variable of a template. The names are those of GitLab.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Variable {
            $($(#[$doc])* $variant,)*
        }

        impl Variable {
            /// Every variable.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the path without its first dot, such as `project.id`.
            pub const fn path(self) -> &'static str {
                match self { $(Self::$variant => $path,)* }
            }
        }
    };
}

variables! {
    /// The id of the agent.
    AgentId = "agent.id";
    /// The name of the agent.
    AgentName = "agent.name";
    /// The URL of the agent.
    AgentUrl = "agent.url";
    /// The id of the environment.
    EnvironmentId = "environment.id";
    /// The name of the environment.
    EnvironmentName = "environment.name";
    /// The slug of the environment.
    EnvironmentSlug = "environment.slug";
    /// The URL of what is deployed.
    EnvironmentUrl = "environment.url";
    /// The URL of the page about the environment.
    EnvironmentPageUrl = "environment.page_url";
    /// The tier of the environment.
    EnvironmentTier = "environment.tier";
    /// The id of the project.
    ProjectId = "project.id";
    /// The slug of the project.
    ProjectSlug = "project.slug";
    /// The full path of the project.
    ProjectPath = "project.path";
    /// The URL of the project.
    ProjectUrl = "project.url";
    /// The id of the pipeline.
    PipelineId = "ci_pipeline.id";
    /// The id of the job.
    JobId = "ci_job.id";
    /// The id of the user whose job it is.
    UserId = "user.id";
    /// The name of this user.
    Username = "user.username";
}

impl Variable {
    /// Returns the variable with a path, such as `project.id`.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|variable| variable.path() == path)
    }
}

/// `.project.id`, as templates have it.
impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ".{}", self.path())
    }
}

/// The values of the variables that are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values(BTreeMap<Variable, String>);

impl Values {
    /// Adds a value.
    #[must_use]
    pub fn with(mut self, variable: Variable, value: impl ToString) -> Self {
        self.0.insert(variable, value.to_string());
        self
    }

    /// Returns the value of a variable, if it is known.
    pub fn get(&self, variable: Variable) -> Option<&str> {
        self.0.get(&variable).map(String::as_str)
    }

    /// Returns the variables with a value.
    pub(crate) fn known(&self) -> impl Iterator<Item = Variable> {
        self.0.keys().copied()
    }
}
