// Browsers start no worker from a file:// page. This class is Material's search worker in a hidden frame instead, so
// that the search also works in a folder without a server. Material looks for its name, IFrameWorker.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.srcdoc = `<script>postMessage = data => frameElement.answer(data)</script><script src="${url}"></script>`
      frame.answer = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.loaded = new Promise(resolve => frame.addEventListener("load", () => resolve(frame)))
      document.addEventListener("DOMContentLoaded", () => document.body.append(frame))
      if (document.body) document.body.append(frame)
    }

    postMessage(data) {
      this.loaded.then(frame => frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
  window.IFrameWorker = window.Worker = IFrameWorker
}
