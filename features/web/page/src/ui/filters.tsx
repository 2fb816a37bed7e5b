/** The fields of a filter that is in the address. */

import { setQuery } from "../router";
import { plain } from "../text";

/** The longest text of a field, in characters. */
const MAX_TEXT = 256;

interface FieldProps {
  /** The parameter of the address. */
  name: string;
  label: string;
  value: string;
}

/** A choice of one of several values. */
export function Choice({ name, label, value, options }: FieldProps & { options: Record<string, string> }) {
  return (
    <select
      aria-label={label}
      value={value}
      onChange={(event) => {
        setQuery({ [name]: event.currentTarget.value });
      }}
    >
      {Object.entries(options).map(([value, text]) => (
        <option key={value} value={value}>
          {plain(text, 100)}
        </option>
      ))}
    </select>
  );
}

/** A text that selects when the reader has written it. */
export function Text({ name, label, value }: FieldProps) {
  return (
    <input
      type="search"
      aria-label={label}
      placeholder={label}
      maxLength={MAX_TEXT}
      value={value}
      onChange={(event) => {
        setQuery({ [name]: event.currentTarget.value.trim() });
      }}
    />
  );
}
