// A task queue that runs a few tasks at the same time and reports progress.

const CONCURRENCY = 4;

export class Queue {
  constructor(onProgress) {
    Object.assign(this, { onProgress, waiting: [], running: 0, done: 0, total: 0 });
  }

  add(task) {
    if (!this.running && !this.waiting.length) this.done = this.total = 0; // restart the count
    this.total += 1;
    this.waiting.push(task);
    this.next();
  }

  next() {
    this.onProgress(this.done, this.total);
    while (this.running < CONCURRENCY && this.waiting.length) {
      const task = this.waiting.shift();
      this.running += 1;
      task().finally(() => {
        this.running -= 1;
        this.done += 1;
        this.next();
      });
    }
  }
}
