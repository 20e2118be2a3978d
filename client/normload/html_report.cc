#include "absl/strings/str_replace.h"
#include "client/normload/page_text.h"
#include "client/normload/report.h"
#include "client/normload/report_json.h"

namespace normd::load {

std::string HtmlReport(const Report& report) {
  // Servers' messages may contain anything: without '<' they cannot end the element around them.
  const std::string data = absl::StrReplaceAll(JsonForPage(report), {{"<", "\\u003c"}});
  return absl::StrReplaceAll(
      kPageHtml, {{"{{style}}", kPageCss}, {"{{script}}", kPageJs}, {"{{data}}", data}});
}

}  // namespace normd::load
