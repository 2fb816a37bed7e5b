//! The parts of the crates that have modules of several features.

/// The part that is of no feature. It may name only itself.
pub(crate) const CORE: &str = "core";
/// The part that puts a program together: the command line, the configuration file, the start. It may name everything.
pub(crate) const PROGRAM: &str = "program";

/// The parts of modules, with all modules below them. Other modules are core.
///
/// The command line of kas has the commands of features, and agentk the admission webhook; the rest of these crates is program.
pub(crate) const MODULES: &[(&str, &str, &str)] = &[
    ("cli", "", PROGRAM),
    ("cli", "audit", "cluster-audit"),
    ("cli", "environments", "environments"),
    ("cli", "events", "events"),
    ("cli", "gitops", "gitops"),
    ("cli", "graph", "graph"),
    ("cli", "login", "oidc"),
    ("cli", "register", "gitlab"),
    ("gateway", "", PROGRAM),
    ("gateway", "app", PROGRAM),
    ("gateway", "cli", PROGRAM),
    ("gateway", "config", PROGRAM),
    ("gateway", "features", PROGRAM),
    ("gateway", "test_support", PROGRAM),
    ("agent", "", PROGRAM),
    ("agent", "admission", "admission"),
    ("agent", "app", PROGRAM),
    ("agent", "check", PROGRAM),
    ("agent", "cli", PROGRAM),
    ("agent", "cli::admission", "admission"),
    ("agent", "features", PROGRAM),
];
