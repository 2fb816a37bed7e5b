/** Where a log was cut. Pure. */

import type { Line } from "./merge";

/**
 * Leaves out the lines that the API server repeats when a log is read again: those since the second of the last line. Several lines may
 * have the same time, and a node whose clock was set may write a line with an earlier one.
 */
export class LogPosition {
  /** The time of the newest line, or nothing. */
  time = "";
  private linesAtTime = 0;
  /** The number of the lines at `time` that are still repeated, or `null` after them. */
  private repeated: number | null = null;
  private lastUntimed = "";

  /** The log is read again. */
  begin(): void {
    this.repeated = this.time === "" ? null : this.linesAtTime;
  }

  /** Returns whether a line is a new one. */
  accept({ time, text }: Line): boolean {
    if (time === "") {
      // Such lines are errors of the kubelet, which it may repeat at each attempt.
      const isNew = text !== this.lastUntimed;
      this.lastUntimed = text;
      return isNew;
    }
    if (this.repeated !== null) {
      if (time < this.time) return false;
      if (time === this.time && this.repeated > 0) {
        this.repeated -= 1;
        return false;
      }
      this.repeated = null;
    }
    if (time > this.time) [this.time, this.linesAtTime] = [time, 1];
    else if (time === this.time) this.linesAtTime += 1;
    return true;
  }
}
