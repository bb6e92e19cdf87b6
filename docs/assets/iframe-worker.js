/* A page from disk may start no worker: there the search runs in a hidden frame of the page, with a worker's interface. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      frame.tabIndex = -1;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.inside.document.createElement("script");
      this.ready = new Promise((done) => script.addEventListener("load", done));
      script.src = new URL(url, document.baseURI).href;
      this.inside.document.head.append(script);
    }

    async postMessage(data) {
      await this.ready;
      this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.inside.frameElement?.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
