// The files in page/, compiled in.

#ifndef NORMD_SERVER_METRICS_PAGE_TEXT_H_
#define NORMD_SERVER_METRICS_PAGE_TEXT_H_

namespace normd {

// {{style}} and {{script}} are the placeholders.
extern const char kStatusPageHtml[];
extern const char kStatusPageCss[];
extern const char kStatusPageJs[];

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_PAGE_TEXT_H_
