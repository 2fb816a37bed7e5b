//! The sections that only name a file: `identity`, `environments` and `disabled`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;

/// Section `identity`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IdentityConfig {
    /// The identity file. It is read again when it changes.
    #[schemars(with = "PathBuf")]
    pub file: Spanned<PathBuf>,
}

/// Section `environments`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentsConfig {
    /// The file with the environments. It is read again when it changes.
    #[schemars(with = "PathBuf")]
    pub file: Spanned<PathBuf>,
}

/// Section `disabled`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DisabledConfig {
    /// The file with the rules by which requests are disabled. It is read again when it changes. Without it there are no rules.
    #[schemars(with = "Option<PathBuf>")]
    pub file: Option<Spanned<PathBuf>>,
    /// The file in which the replica keeps the rules of `kas disable --fleet`, for a start with an empty Redis. The replica writes it.
    #[schemars(with = "Option<PathBuf>")]
    pub fleet_file: Option<Spanned<PathBuf>>,
}
