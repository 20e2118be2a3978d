// The files in page/, compiled in.

#ifndef NORMD_CLIENT_NORMLOAD_PAGE_TEXT_H_
#define NORMD_CLIENT_NORMLOAD_PAGE_TEXT_H_

namespace normd::load {

// {{style}}, {{data}} and {{script}} are the placeholders.
extern const char kPageHtml[];
extern const char kPageCss[];
extern const char kPageJs[];

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_PAGE_TEXT_H_
