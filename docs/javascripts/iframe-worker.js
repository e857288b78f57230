// Browsers refuse workers in pages that are opened as files. There, the worker of the search runs
// in a hidden frame. The theme looks for the names IFrameWorker and iframe-worker.js.
if (location.protocol === "file:") {
  const load = (frame, url) =>
    new Promise((resolve, reject) => {
      const script = frame.document.createElement("script");
      script.src = url;
      script.onload = resolve;
      script.onerror = () => reject(new Error(`cannot load ${url}`));
      frame.document.body.append(script);
    });

  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.element = document.createElement("iframe");
      this.element.hidden = true;
      document.body.append(this.element);
      const frame = this.element.contentWindow;
      frame.document.write("<!doctype html><body>");
      frame.document.close();
      frame.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      frame.importScripts = async (...urls) => {
        for (const each of urls) await load(frame, each);
      };
      this.loaded = load(frame, url);
    }

    async postMessage(data) {
      await this.loaded;
      this.element.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.element.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
